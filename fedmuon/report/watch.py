"""`--watch`: the page on the loopback address, made anew while runs go on."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from time import monotonic
from typing import Any
from urllib.parse import parse_qs, urlsplit

from fedmuon.errors import UsageError
from fedmuon.report.page import page

AGAIN = 60.0  # seconds after which runs are read again although nothing was written: one may have been killed


class Watch(ThreadingHTTPServer):
    """Serves "/" and, to a page that has another version, "/data.json".

    make   reads the runs, `fedmuon.report.content.content`;  stamp  changes when one of them has written something
    """

    daemon_threads = True

    def __init__(self, make: Callable[[], dict[str, Any]], stamp: Callable[[], Any], port: int = 0) -> None:
        self.make, self.stamp, self.lock = make, stamp, Lock()
        self.seen, self.made = stamp(), monotonic()
        self.latest = self._versioned(make())
        super().__init__(("127.0.0.1", port), _Handler)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/"

    def content(self) -> dict[str, Any]:
        """What the runs say now; what they said last, where they cannot be read at this moment."""
        with self.lock:  # one reading at a time, whoever asks
            seen = self.stamp()
            if seen != self.seen or monotonic() - self.made > AGAIN:
                with suppress(UsageError, OSError):  # a folder is being moved
                    self.latest = self._versioned(self.make())
                self.seen, self.made = seen, monotonic()
            return self.latest

    def _versioned(self, content: dict[str, Any]) -> dict[str, Any]:
        told = json.dumps({key: value for key, value in content.items() if key != "made"}, sort_keys=True)
        return {**content, "watch": True, "version": sha256(told.encode()).hexdigest()[:12]}


class _Handler(BaseHTTPRequestHandler):
    server: Watch

    def do_GET(self) -> None:
        if self.headers.get("Host", "").rpartition(":")[0] not in ("127.0.0.1", "localhost"):
            return self._answer(403, "text/plain", b"")  # a page from elsewhere under a name that leads here
        path = urlsplit(self.path)
        if path.path == "/":
            return self._answer(200, "text/html; charset=utf-8", page(self.server.content()).encode())
        if path.path != "/data.json":
            return self._answer(404, "text/plain", b"")
        content = self.server.content()
        if parse_qs(path.query).get("version") == [content["version"]]:
            return self._answer(204, "application/json", b"")
        return self._answer(200, "application/json", json.dumps(content, allow_nan=False).encode())

    def _answer(self, code: int, kind: str, body: bytes) -> None:
        with suppress(ConnectionError):  # the page was closed
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Cache-Control", "no-store")
            if code != 204:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: a request every two seconds is no news."""
