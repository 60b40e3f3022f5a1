"""A guest that runs."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional, Type, Union

from .connection import Connection, Refused

if TYPE_CHECKING:
    import drgn

#: So many bytes are read at a time.
_MOST_READ = 65536


@dataclass(frozen=True)
class Probe:
    """A probe of the guest, and what it has seen."""

    id: int
    #: As the user writes it: ``vfs_read%return``.
    probe: str
    #: The name that a definition gives its hits.
    event: Optional[str]
    state: str
    enabled: bool
    hits: int
    missed: int


@dataclass(frozen=True)
class Vcpu:
    """Where a CPU stands."""

    vcpu: int
    rip: Optional[int]
    #: The function of ``rip``.
    name: Optional[str]
    #: The task that it runs, as comm-pid.
    task: Optional[str]
    regs: Dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Hit:
    """A hit of a probe, at which the guest stands still."""

    machine: Machine
    #: The number of the probe.
    probe: int
    vcpu: int
    #: Registers by their names, before the instruction is executed.
    regs: Dict[str, int]

    @property
    def task(self) -> Optional[str]:
        """The task that runs there, as comm-pid."""
        return self.machine.regs(self.vcpu).task

    def read(self, address: int, length: int) -> bytes:
        """Memory as the CPU sees it: also that of the program that runs there.

        Refused where there is none: a page of a program may not be there yet.
        """
        return self.machine.read(address, length, self.vcpu)

    def word(self, address: int) -> int:
        """The number of 64 bits at ``address``, as a pointer is."""
        return int.from_bytes(self.read(address, 8), "little")

    def text(self, address: int, most: int = 4096) -> str:
        """The text at ``address`` up to its zero byte, and ``most`` bytes of it."""
        text = b""
        while len(text) < most:
            # No more than the page has: the next one may not be there.
            here = address + len(text)
            part = self.read(here, min(most - len(text), 4096 - here % 4096))
            end = part.find(b"\0")
            if end >= 0:
                return (text + part[:end]).decode(errors="backslashreplace")
            text += part
        return text.decode(errors="backslashreplace")


class Machine:
    """A guest that runs. It is used by one thread, and may be left by ``with``."""

    def __init__(self, path: str) -> None:
        self._connection = Connection(path)
        self._program: Optional[drgn.Program] = None

    def __enter__(self) -> Machine:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leaves the guest. One that this client has paused goes on."""
        self._connection.close()

    def call(self, method: str, **params: Any) -> Any:
        """Any method of the protocol, as docs/control.md has them."""
        return self._connection.call(method, **params)

    # Probes.

    def probes(self) -> List[Probe]:
        return _probes(self.call("list"))

    def add(self, *definitions: str) -> List[Probe]:
        """Adds probes by definitions, all or none. Their hits are recorded and shown where those of the command line are."""
        return _probes(self.call("add", definitions=list(definitions)))

    def remove(self, *probes: Union[int, str, Probe]) -> List[Probe]:
        """Removes probes, by their numbers or names. Gives what they have seen."""
        return _probes(self.call("remove", probes=_chosen(probes)))

    def enable(self, *probes: Union[int, str, Probe]) -> List[Probe]:
        return _probes(self.call("enable", probes=_chosen(probes)))

    def disable(self, *probes: Union[int, str, Probe]) -> List[Probe]:
        return _probes(self.call("disable", probes=_chosen(probes)))

    def probe(self, definition: str, *, hold: bool, timeout: Optional[float] = None) -> Iterator[Hit]:
        """Hits of a probe that is there as long as they are asked for. The guest stands still at each until the next one is asked for.

        TimeoutError where no hit comes in ``timeout`` seconds. Hits at which the guest does not stand still (``hold=False``) are in the
        recording of the run, and their numbers in ``counters``.
        """
        if not hold:
            raise ValueError("hits without hold are in the run's recording: add() the probe, and read --output")
        return self._hits(definition, timeout)

    def _hits(self, definition: str, timeout: Optional[float]) -> Iterator[Hit]:
        added = self.call("add", definitions=[definition], stop=True)["probes"]
        own = {probe["id"] for probe in added}

        def is_own(stop: Dict[str, Any]) -> bool:
            return stop["probe"] in own

        try:
            while True:
                said: Optional[Dict[str, Any]] = self._connection.wait("stopped", is_own, timeout)
                while said is not None:
                    yield Hit(self, said["probe"], said["vcpu"], _numbers(said["regs"]))
                    # Several CPUs may have come to it at once. All stops so far have been told before this answer.
                    self.call("status")
                    said = self._connection.told("stopped", is_own)
                self.call("resume")
        finally:
            try:
                self.call("remove", probes=sorted(own))
            finally:
                self.call("resume")

    def counters(self) -> Dict[str, Any]:
        """Everything that is counted, as docs/control.md has it."""
        counters: Dict[str, Any] = self.call("counters")
        return counters

    def histograms(self, name: Optional[str] = None, lines: Optional[int] = None) -> List[Dict[str, Any]]:
        """Histograms at this moment: that of a name, or all, with so many lines of each at most."""
        histograms: List[Dict[str, Any]] = self.call("histograms", name=name, lines=lines)["histograms"]
        return histograms

    # CPUs and memory.

    @contextmanager
    def paused(self) -> Iterator[None]:
        """All CPUs stand still meanwhile."""
        self.call("pause")
        try:
            yield
        finally:
            self.call("resume")

    def vcpus(self) -> List[Vcpu]:
        """All CPUs with their registers, in one stop."""
        return [_vcpu(vcpu) for vcpu in self.call("regs")["vcpus"]]

    def regs(self, vcpu: int) -> Vcpu:
        return _vcpu(self.call("regs", vcpu=vcpu)["vcpus"][0])

    def stack(self, vcpu: int) -> List[str]:
        """Who called whom on a CPU, by the kernel's own tables."""
        (own,) = self.call("stack", vcpu=vcpu)["vcpus"]
        return [str(frame.get("name") or frame.get("rip")) for frame in own.get("stack") or []]

    def read(self, address: int, length: int, vcpu: Optional[int] = None) -> bytes:
        """Memory as the kernel sees it, or as that CPU does: without bytes of ours."""
        return b"".join(
            bytes.fromhex(self.call("read", address=hex(at), length=size, vcpu=vcpu)["bytes"])
            for at, size in _parts(address, length)
        )

    def read_physical(self, address: int, length: int) -> bytes:
        """Guest-physical memory. What is in no part of an answer is zeros."""
        memory = bytearray(length)
        for at, size in _parts(address, length):
            for part in self.call("read_physical", address=hex(at), length=size)["parts"]:
                data, start = bytes.fromhex(part["bytes"]), int(part["address"], 16) - address
                memory[start : start + len(data)] = data
        return bytes(memory)

    def drgn(self) -> drgn.Program:
        """The kernel as drgn sees it, by physical memory, for as long as the guest stands still or for what does not change meanwhile.

        It has no debugging information: ``program.load_debug_info(["vmlinux"])`` loads that.
        """
        if self._program is None:
            import drgn

            program = drgn.Program(drgn.Platform(drgn.Architecture.X86_64))
            told = self.call("vmcoreinfo")["bytes"]
            if told is None:
                raise Refused("the kernel has nothing for readers of its memory yet (vmcoreinfo)")
            program.set_linux_kernel_custom(bytes.fromhex(told), True)

            def read(address: int, count: int, offset: int, physical: bool) -> bytes:
                return self.read_physical(address, count) if physical else self.read(address, count)

            program.add_memory_segment(0, 0xFFFFFFFFFFFFFFFF, read, True)
            program.add_memory_segment(0, 0xFFFFFFFFFFFFFFFF, read, False)
            self._program = program
        return self._program

    def quit(self) -> None:
        """Ends the guest."""
        self.call("quit")


def _parts(address: int, length: int) -> Iterator["tuple[int, int]"]:
    for start in range(0, length, _MOST_READ):
        yield address + start, min(_MOST_READ, length - start)


def _probes(result: Dict[str, Any]) -> List[Probe]:
    names = Probe.__dataclass_fields__
    return [Probe(**{name: probe[name] for name in names}) for probe in result["probes"]]


def _chosen(probes: "tuple[Union[int, str, Probe], ...]") -> List[Union[int, str]]:
    return [probe.id if isinstance(probe, Probe) else probe for probe in probes]


def _numbers(regs: Dict[str, str]) -> Dict[str, int]:
    return {name: int(value, 16) for name, value in regs.items()}


def _vcpu(line: Dict[str, Any]) -> Vcpu:
    task, rip = line.get("task"), line.get("rip")
    return Vcpu(
        vcpu=line["vcpu"],
        rip=int(rip, 16) if rip else None,
        name=line.get("name"),
        task=f"{task['comm']}-{task['pid']}" if isinstance(task, dict) else task,
        regs=_numbers(line.get("regs", {})),
    )
