"""Tiny models that have tools: the golden one with another chat template, and a longer context to write it in.

The templates are as short as they can be and still have what is typical of their family: how tools are shown, how calls
are written, and what the family insists on.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

TINY_LLAMA = Path(__file__).parent / "golden" / "tiny_llama"

HERMES = """\
{%- if tools %}<|im_start|>system
{{ messages[0].content ~ '\n' if messages[0].role == 'system' }}<tools>
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}
</tools>
Answer with <tool_call>{"name": …, "arguments": …}</tool_call><|im_end|>
{% endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}<|im_start|>user
<tool_response>
{{ message.content }}
</tool_response><|im_end|>
{% elif message.role != 'system' or not tools %}<|im_start|>{{ message.role }}
{{ message.content }}
{%- for call in message.tool_calls %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

LLAMA3 = """\
{%- for message in messages %}
{%- if message.tool_calls %}
{%- if message.tool_calls | length != 1 %}{{ raise_exception('This model makes one call at a time') }}{% endif -%}
{%- set call = message.tool_calls[0].function %}<|im_start|>assistant
{"name": "{{ call.name }}", "parameters": {{ call.arguments | tojson }}}<|im_end|>
{% else %}<|im_start|>{{ 'ipython' if message.role == 'tool' else message.role }}
{% if loop.first and tools %}Respond in the format {"name": function name, "parameters": dictionary}.
{% for tool in tools %}{{ tool | tojson(indent=4) }}
{% endfor %}{% endif -%}
{{ message.content }}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

MISTRAL = """\
{%- if tools %}[AVAILABLE_TOOLS] [
{%- for tool in tools %}{{ tool | tojson }}{{ ', ' if not loop.last }}{% endfor %}][/AVAILABLE_TOOLS]
{%- endif %}
{%- for message in messages %}
{%- if message.tool_calls is defined %}[TOOL_CALLS] [
{%- for call in message.tool_calls %}
{%- if call.id | length != 9 %}{{ raise_exception('Tool call ids have 9 characters') }}{% endif -%}
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}, "id": "{{ call.id }}"}
{%- if not loop.last %}, {% endif %}{% endfor %}]<|im_end|>
{%- elif message.role == 'tool' %}[TOOL_RESULTS] {"content": {{ message.content | tojson }}, "call_id": "
{{- message.tool_call_id }}"}[/TOOL_RESULTS]
{%- else %}<|im_start|>{{ message.content }}<|im_end|>
{%- endif %}
{%- endfor %}"""

TEMPLATES = {"hermes": HERMES, "llama3": LLAMA3, "mistral": MISTRAL}
_CONTROL_MARKS = {"llama3": "<|python_tag|>", "mistral": "[TOOL_CALLS]"}  # Hermes' are text


def make_model(folder: Path, family: str) -> Path:
    """A model of one of the families (or of none, with the plain template), made in `folder`."""
    made = folder / family
    shutil.copytree(TINY_LLAMA, made)
    if family in TEMPLATES:
        (made / "chat_template.jinja").write_text(TEMPLATES[family])
    config = json.loads((made / "config.json").read_text())
    (made / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 8192}))
    if mark := _CONTROL_MARKS.get(family):
        for name in ("tokenizer.json", "tokenizer_config.json"):
            path = made / name
            path.write_text(path.read_text().replace('"<pad>"', json.dumps(mark)))
    return made


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of some days.",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 6},
                "days": {"type": "integer", "minimum": 0, "maximum": 9},
                "unit": {"enum": ["C", "F"]},
            },
            "required": ["city", "days", "unit"],
            "additionalProperties": False,
        },
    },
}
NOW = {
    "type": "function",
    "function": {"name": "now", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}},
}
TOOLS = [WEATHER, NOW]
