"""A connection to a control socket: JSON-RPC 2.0, one message a line."""

from __future__ import annotations

import json
import socket
from collections import deque
from typing import Any, Callable, Deque, Dict, Optional

#: The version of the protocol that is spoken here.
PROTOCOL = 1


class Refused(Exception):
    """The guest's server has refused a call, and says why."""


class Ended(Exception):
    """The guest has ended, or its server has left this client."""


class Connection:
    """One client of a control socket. It is used by one thread."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect(path)
            self._lines = self._socket.makefile("rb")
            self._last = 0
            # What was told while an answer was waited for.
            self._told: Deque[Dict[str, Any]] = deque()
            spoken = self.call("version")["protocol"]
            if spoken != PROTOCOL:
                raise Refused(f"the guest's server speaks version {spoken} of the protocol, and this package {PROTOCOL}")
        except BaseException:
            self._socket.close()
            raise

    def call(self, method: str, **params: Any) -> Any:
        """What comes of a method. Parameters that are None are left out."""
        self._last += 1
        message: Dict[str, Any] = {"jsonrpc": "2.0", "id": self._last, "method": method}
        given = {name: value for name, value in params.items() if value is not None}
        if given:
            message["params"] = given
        try:
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except (BrokenPipeError, ConnectionResetError):
            # The answer to what was sent before says why, if there is one.
            pass
        while True:
            said = self._next()
            if "method" in said:
                self._keep(said)
            elif "error" in said:
                raise Refused(str(said["error"]["message"]))
            elif said.get("id") == self._last:
                return said["result"]

    def told(self, method: str, wanted: Callable[[Dict[str, Any]], bool]) -> Optional[Dict[str, Any]]:
        """What has been told before the last answer under the name of ``method`` and is ``wanted``, once."""
        for said in self._told:
            params = dict(said.get("params", {}))
            if said["method"] == method and wanted(params):
                self._told.remove(said)
                return params
        return None

    def wait(
        self, method: str, wanted: Callable[[Dict[str, Any]], bool], timeout: Optional[float] = None
    ) -> Dict[str, Any]:
        """The same, or what is told next. TimeoutError where that takes more than ``timeout`` seconds."""
        told = self.told(method, wanted)
        if told is not None:
            return told
        self._socket.settimeout(timeout)
        try:
            while True:
                said = self._next()
                params = dict(said.get("params", {}))
                if said.get("method") == method and wanted(params):
                    return params
                self._keep(said)
        except TimeoutError:
            # A file that has met its time's end reads no more. What has come of a line is kept by nobody: lines are sent whole.
            self._lines = self._socket.makefile("rb")
            raise
        finally:
            self._socket.settimeout(None)

    def _keep(self, said: Dict[str, Any]) -> None:
        # Nobody asks for others, and there is no end of them.
        if said.get("method") == "stopped":
            self._told.append(said)

    def close(self) -> None:
        self._lines.close()
        self._socket.close()

    def _next(self) -> Dict[str, Any]:
        try:
            line = self._lines.readline()
        except ConnectionResetError:
            line = b""
        if not line:
            raise Ended("the guest has ended, or its server has left this client")
        said: Dict[str, Any] = json.loads(line)
        return said
