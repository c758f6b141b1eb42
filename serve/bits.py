"""Bits: reads the first bytes of coded data, most significant bit first."""

HEAD_BYTES = 32


class Bits:
    """Reads `data` up to its first `at_most` bytes; zeros behind the end."""

    def __init__(self, data: bytes, at_most: int = HEAD_BYTES) -> None:
        head = data[:at_most]
        self._value, self._left = int.from_bytes(head, "big"), 8 * len(head)

    @property
    def is_over(self) -> bool:
        return self._left < 0

    def read(self, count: int) -> int:
        self._left -= count
        return self._value >> self._left & ((1 << count) - 1) if self._left >= 0 else 0

    def ue(self) -> int:
        """An unsigned Exp-Golomb code (ITU-T H.264, 9.1)."""
        zeros = 0
        while not self.read(1):
            zeros += 1
            if self.is_over:
                return 0
        return (1 << zeros) - 1 + self.read(zeros)

    def se(self) -> int:
        """A signed Exp-Golomb code (9.1.1)."""
        code = self.ue()
        return (code + 1) // 2 if code % 2 else -(code // 2)
