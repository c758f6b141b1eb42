"""A local S3-compatible server (moto) whose front door can refuse puts, or acknowledge them and store nothing."""

import random
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.request import Request, urlopen

import pytest
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

BUCKET = "features"
Respond = Callable[..., Any]


class FrontDoor:
    """Hands requests on to moto, except for a share of the puts.

    Attributes:
        url: endpoint.
        refuse, lie: share of puts that are answered with 503, and with 200 although nothing is stored.
        lie_next: puts that are lied about whatever the share.
        forbid: answer everything with 403.
        ignore_conditions: drop If-Match and If-None-Match, as older servers do.
        puts, refused, lied: how many puts came, and met each fate.
        lied_about_leases: how many of `lied` were conditional, which nobody reads back at once.
    """

    def __init__(self) -> None:
        self.url = ""
        self.refuse = self.lie = 0.0
        self.lie_next = 0
        self.forbid = self.ignore_conditions = False
        self.refused = self.lied = self.lied_about_leases = self.puts = 0
        self._random = random.Random(0)
        self._lock = threading.Lock()
        self._moto = DomainDispatcherApplication(create_backend_app)

    def __call__(self, environ: dict[str, Any], respond: Respond) -> Iterable[bytes]:
        if self.forbid:
            respond("403 Forbidden", [("Content-Length", "0")])
            return [b""]
        if self.ignore_conditions:
            environ.pop("HTTP_IF_MATCH", None)
            environ.pop("HTTP_IF_NONE_MATCH", None)
        if environ["REQUEST_METHOD"] == "PUT" and environ["PATH_INFO"].count("/") > 1:
            with self._lock:
                self.puts += 1
                draw = self._random.random()
                refuse = draw < self.refuse
                lie = not refuse and (draw < self.refuse + self.lie or self.lie_next > 0)
                self.lie_next -= lie and self.lie_next > 0
                self.refused += refuse
                self.lied += lie
                self.lied_about_leases += lie and environ["PATH_INFO"].endswith("lease.json")
            if refuse or lie:
                environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
                respond("503 Slow Down" if refuse else "200 OK", [("Content-Length", "0"), ("ETag", '"00"')])
                return [b""]
        answer: Iterable[bytes] = self._moto(environ, respond)
        return answer


class _Quiet(WSGIRequestHandler):
    def log(self, type: str, message: str, *args: Any) -> None:
        """Requests are not printed."""


@contextmanager
def s3_server(environment: pytest.MonkeyPatch) -> Iterator[FrontDoor]:
    """A server with an empty bucket `BUCKET`, and the environment that leads a client to it."""
    door = FrontDoor()
    server = make_server("127.0.0.1", 0, door, threaded=True, request_handler=_Quiet)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    door.url = f"http://127.0.0.1:{server.server_port}"
    environment.setenv("AWS_ENDPOINT_URL", door.url)
    environment.setenv("AWS_ACCESS_KEY_ID", "test")
    environment.setenv("AWS_SECRET_ACCESS_KEY", "test")
    environment.setenv("AWS_REGION", "us-east-1")
    for reset in (Request(f"{door.url}/moto-api/reset", method="POST"), Request(f"{door.url}/{BUCKET}", method="PUT")):
        with urlopen(reset):
            pass
    try:
        yield door
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
