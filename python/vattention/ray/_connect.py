"""Connection to a Ray cluster, with a time limit."""

import importlib
import logging
import os
import socket
import sys
import threading
import time
from contextlib import redirect_stdout
from types import TracebackType
from typing import Any

# Ray's types are not complete, and it may be absent where the package is checked.
Ray = Any


class Unreachable(Exception):
    """Error: no cluster can run the tasks."""


class Cluster:
    """Connection to a Ray cluster, made within `wait` seconds. Redirects stdout to stderr.

    Raises Unreachable if Ray is not installed, or if no cluster answers at the address.
    """

    def __init__(self, address: str, wait: float) -> None:
        try:
            self.ray: Ray = importlib.import_module("ray")
        except ImportError as error:
            raise Unreachable(
                f"Ray cannot be imported ({error}); it comes with: pip install 'vattention[ray]'"
            ) from None
        address = os.environ.get("RAY_ADDRESS", address) if address == "auto" else address
        if address != "auto":
            _expect_answer(address, wait)
        # `ray.init` may take minutes to fail, and cannot be interrupted.
        watchdog = threading.Timer(wait, _give_up, (address, wait))
        watchdog.daemon = True
        watchdog.start()
        self._redirection = redirect_stdout(sys.stderr)
        self._redirection.__enter__()
        try:
            self.ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, RuntimeError, ValueError) as error:
            self._redirection.__exit__(None, None, None)
            raise Unreachable(f"--address {address}: {error}") from None
        finally:
            watchdog.cancel()

    def can_run(self, needs: dict[str, float]) -> bool:
        """Returns True if a node has the resources of a task, even if the node is busy."""
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        return any(
            all(has.get(name, 0) >= amount for name, amount in needs.items()) for has in nodes
        )

    def expect_room(self, needs: dict[str, float], wait: float) -> None:
        """Waits up to `wait` seconds for a node that has the resources of a task.

        Raises Unreachable if there is no such node then.
        """
        deadline = time.monotonic() + wait
        while not self.can_run(needs):
            if time.monotonic() > deadline:
                raise Unreachable(
                    f"no node of the cluster has the resources of a task: {_format(needs)}; "
                    f"the nodes have: {self._resources()}"
                )
            time.sleep(0.5)

    def slots(self, needs: dict[str, float]) -> int:
        """Returns the number of tasks that can run at the same time on otherwise idle nodes."""
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        return sum(
            int(min(has.get(name, 0) // amount for name, amount in needs.items())) for has in nodes
        )

    def _resources(self) -> str:
        nodes = [node for node in self.ray.nodes() if node["Alive"]]
        return (
            "; ".join(
                _format({name: node["Resources"].get(name, 0) for name in ("CPU", "memory")})
                for node in nodes
            )
            or "there is no node"
        )

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.ray.shutdown()
        self._redirection.__exit__(kind, error, trace)


def _format(resources: dict[str, float]) -> str:
    units = {"CPU": (1, "cores"), "memory": (2**30, "GiB of memory")}
    return ", ".join(
        f"{amount / units[name][0]:g} {units[name][1]}" for name, amount in resources.items()
    )


def _expect_answer(address: str, wait: float) -> None:
    """Raises Unreachable if nothing listens at the address; Ray would try much longer."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise Unreachable(
            f"--address {address}: expected auto, or the host:port of a cluster's head"
        )
    deadline = time.monotonic() + wait
    while True:
        try:
            socket.create_connection(
                (host.strip("[]"), int(port)), timeout=max(deadline - time.monotonic(), 0.1)
            ).close()
            return
        except OSError as error:
            if time.monotonic() + 1 > deadline:
                raise Unreachable(
                    f"--address {address}: nothing answers within {wait:g} seconds ({error})"
                ) from None
            time.sleep(1)


def _give_up(address: str, wait: float) -> None:
    print(
        f"error: --address {address}: no Ray cluster answers within {wait:g} seconds",
        file=sys.stderr,
        flush=True,
    )
    os._exit(2)
