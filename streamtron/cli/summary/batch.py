"""What has become of the jobs of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def fate_line(fate: Mapping[str, Any]) -> str:
    """What has just become of a job.

    Examples
    --------
    >>> fate_line({"name": "score", "command": "predict", "state": "done", "sentence": ""})
    'score (predict): done'
    """
    said = f": {fate['sentence']}" if fate["sentence"] else ""
    return f"{fate['name']} ({fate['command']}): {fate['state']}{said}"


def batch_verdict(path: str, fates: Sequence[Mapping[str, Any]]) -> str:
    """How many jobs are done, and which are not.

    Examples
    --------
    >>> batch_verdict("b.toml", [{"name": "a", "state": "done"}, {"name": "c", "state": "failed"}])
    'b.toml: 1 of 2 jobs done; failed: c. Correct what they say, and call it again.'
    """
    done = sum(fate["state"] == "done" for fate in fates)
    parts = [f"{path}: {done} of {len(fates)} jobs done"]
    for state in ("failed", "skipped"):
        names = [fate["name"] for fate in fates if fate["state"] == state]
        parts += [f"{state}: {', '.join(names)}"] if names else []
    end = ". Correct what they say, and call it again." if len(parts) > 1 else ""
    return "; ".join(parts) + end
