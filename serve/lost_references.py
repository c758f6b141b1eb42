"""Lost references: whether H.264 pictures are missing that others refer to (ITU-T H.264, 7.4.3, frame_num).

A network recorder that loses packets writes a whole file without them, with a gap in the times that may as well be a
variable rate. FFmpeg's decoder then takes another picture as the reference, without an error. Pictures that nothing
refers to bear no number, and a loss of exactly as many references as there are numbers shows nowhere.
"""

from coldframe.serve.h264_headers import Picture


class LostReferences:
    """Goes through the pictures of a stream in file order.

    Attributes:
        damaged: numbers of the packets behind a loss; of the one before it where a key frame follows, which needs
            nothing, but whose leading pictures do.
    """

    def __init__(self) -> None:
        self.damaged: list[int] = []
        self._last: int | None = None  # number of the last reference

    def add(self, number: int, picture: Picture, *, is_key: bool) -> None:
        """Take the picture of packet `number`. After a command that forgets all references a loss is seen too many."""
        if not picture.frame_nums:
            self._last = None
            return
        last, found = self._last, picture.frame_num
        if not picture.is_idr and last is not None and found not in (last, (last + 1) % picture.frame_nums):
            self.damaged.append(max(0, number - is_key))
            self._last = found
        if picture.is_reference:
            self._last = found
