"""CPU targets: one record each. A kernel asks the record for its lane structure and its dot-product instruction."""

from dataclasses import dataclass

from goinfer.bundle_format.errors import UsageError


@dataclass(frozen=True)
class Target:
    """An instruction set that kernels are compiled for.

    lanes: 32-bit lanes of a vector register. registers: vector registers. dot: how int8 products are summed into int32
    lanes ("maddubs", "vnni", "sdot", "smmla", or "vnni-emulated": the instruction's definition written out, for tests
    on machines that lack it). needs: CPU flags, as Linux spells them, that the runtime checks before the choice.
    """

    name: str
    triple: str
    cpu: str
    features: str
    lanes: int
    registers: int
    dot: str
    needs: tuple[str, ...]
    baseline: int
    """Preference among the targets a machine can run; the highest wins."""
    like: str = ""
    """A target that differs in nothing but its dot products: kernels without any are taken from there."""

    @property
    def arch(self) -> str:
        """Machine name as `platform.machine()` spells it."""
        return self.triple.split("-")[0]


_V3_FLAGS = ("avx2", "fma", "f16c", "bmi2", "movbe", "sse4_2", "popcnt")
_ARM_FLAGS = ("asimd", "asimddp", "crc32", "fphp", "asimdhp")
_V4_FLAGS = (*_V3_FLAGS, "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd")

TARGETS = {
    t.name: t
    for t in (
        Target("x86-64-v3", "x86_64-unknown-linux-gnu", "x86-64-v3", "", 8, 16, "maddubs", _V3_FLAGS, 10),
        Target(
            "x86-64-v3-avxvnni", "x86_64-unknown-linux-gnu", "x86-64-v3", "+avxvnni", 8, 16, "vnni",
            (*_V3_FLAGS, "avx_vnni"), 20, like="x86-64-v3",
        ),
        Target(
            "x86-64-v4-vnni", "x86_64-unknown-linux-gnu", "x86-64-v4", "+avx512vnni", 16, 32, "vnni",
            (*_V4_FLAGS, "avx512_vnni"), 30,
        ),
        Target(
            "aarch64-dotprod", "aarch64-unknown-linux-gnu", "generic", "+neon,+dotprod,+fullfp16,+crc", 4, 32, "sdot",
            _ARM_FLAGS, 10,
        ),
        Target(
            "aarch64-i8mm", "aarch64-unknown-linux-gnu", "generic", "+neon,+dotprod,+fullfp16,+crc,+i8mm", 4, 32,
            "smmla", (*_ARM_FLAGS, "i8mm"), 20, like="aarch64-dotprod",
        ),
    )
}  # fmt: skip
"""The default targets, in the order they are written to a bundle."""

EMULATED = {
    t.name: t
    for t in (
        Target("emulated-v4-vnni", "x86_64-unknown-linux-gnu", "x86-64-v3", "", 16, 32, "vnni-emulated", _V3_FLAGS, 0),
        Target("emulated-avxvnni", "x86_64-unknown-linux-gnu", "x86-64-v3", "", 8, 16, "vnni-emulated", _V3_FLAGS, 0),
    )
}
"""The VNNI targets' kernels compiled for AVX2 with the one missing instruction written out: for tests."""


def target_named(name: str) -> Target:
    """Look a target up; raises UsageError listing the known ones."""
    found = TARGETS.get(name) or EMULATED.get(name)
    if found is None:
        raise UsageError(f"unknown target {name!r}; known targets: {', '.join(TARGETS)}")
    return found
