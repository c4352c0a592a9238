"""Tools that clients offer: the limits and the choice among them, which all dialects share.

Owns: how many tools there may be, and how they may be called. Refuses to know: how any dialect writes them, how models
write calls.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from taximeter.errors import RequestError
from taximeter.records import Tool, Toolbox

_MOST_TOOLS = 128
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")


def toolbox_of_tools(
    offered: Sequence[Tool], *, are_hidden: bool, must_call: bool, only: str | None, parallel: bool
) -> Toolbox | None:
    """What a call may use; None when that is no tool at all, as with `are_hidden`. See `Toolbox` for the rest. Raises
    RequestError."""
    if len(offered) > _MOST_TOOLS:
        raise RequestError(f"`tools` has more than {_MOST_TOOLS} tools", param="tools")
    names = {tool.name for tool in offered}
    if len(names) < len(offered):
        raise RequestError("two of the `tools` have one name", param="tools")
    if only is not None and only not in names:
        raise RequestError("`tool_choice` names a tool that is not among the `tools`", param="tool_choice")
    if not offered and must_call:
        raise RequestError("`tool_choice` requires a call, and there are no `tools`", param="tool_choice")
    if not offered or are_hidden:
        return None
    return Toolbox(tools=tuple(offered), must_call=must_call, only=only, parallel=parallel)


def check_tool_name(name: str, at: str) -> None:
    """Raises RequestError for what cannot be the name of a tool."""
    if not _NAME.fullmatch(name):
        raise RequestError(f"`{at}` must be 1 to 128 letters, digits, `_`, `.` or `-`", param=at)
