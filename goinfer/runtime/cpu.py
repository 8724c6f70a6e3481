"""Which of a bundle's targets this machine can run."""

import os
import platform

from goinfer.bundle_format.errors import BundleError, UsageError
from goinfer.bundle_format.machine import cpu_flags


class NoTargetError(BundleError):
    """The bundle holds no code this machine can run."""


def usable(targets: dict[str, dict[str, object]], flags: frozenset[str], machine: str) -> list[str]:
    """Names of the targets this machine can run, best first. `targets` is the manifest's table."""
    found = []
    for name, facts in targets.items():
        needs = facts["needs"]
        assert isinstance(needs, list)
        if facts["arch"] == machine and set(needs) <= flags:
            found.append((int(str(facts["rank"])), name))
    return [name for _, name in sorted(found, reverse=True)]


def choose_target(targets: dict[str, dict[str, object]], wanted: str | None = None) -> str:
    """The best usable target, or the one asked for by argument or $GOINFER_TARGET.

    Raises UsageError for a name the bundle has not, NoTargetError (listing what it has) when none fits.
    """
    wanted = wanted or os.environ.get("GOINFER_TARGET") or None
    flags, machine = cpu_flags(), platform.machine()
    good = usable(targets, flags, machine)
    if wanted is None and good:
        return good[0]
    held = ", ".join(targets) or "none"
    if wanted is not None and wanted not in targets:
        raise UsageError(f"target {wanted!r} is not in the bundle; it has: {held}")
    if wanted is not None and wanted in good:
        return wanted
    if wanted is not None and good:
        arch, needs = str(targets[wanted]["arch"]), targets[wanted]["needs"]
        assert isinstance(needs, list)
        why = f"this machine is {machine}" if arch != machine else f"it lacks {' '.join(sorted(set(needs) - flags))}"
        raise NoTargetError(
            f"target {wanted!r} (--target or GOINFER_TARGET) cannot run here: {why}; these can: {', '.join(good)}"
        )
    missing = {name: sorted(set(map(str, facts["needs"])) - flags) for name, facts in targets.items()  # type: ignore[call-overload]
               if facts["arch"] == machine and (wanted is None or name == wanted)}  # fmt: skip
    detail = "; ".join(f"{name} lacks {' '.join(flags_)}" for name, flags_ in missing.items() if flags_)
    raise NoTargetError(
        f"no usable target: the bundle has {held}; this machine is {machine}"
        f"{' (' + detail + ')' if detail else ''}: prequant with a target it can run"
    )
