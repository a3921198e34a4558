#!/usr/bin/env python3
"""Makes tests/data/chats/continued.jsonl: prompts that end within the last message, as transformers
renders them (apply_chat_template with continue_final_message). Made with transformers 5.24.0,
Jinja 3.1.6; it needs no torch.

A line has the template's name (tests/data/jinja/templates), the place in CHATS of the messages before the last one, the
last message, and the prompt: null where transformers raises an error. "is_changed": the template has changed the last
message, but transformers renders a prompt, because it finds the message's text elsewhere.
"""

import argparse
import datetime
import json
import pathlib

from transformers.utils import chat_template_utils

DATA = pathlib.Path(__file__).resolve().parent.parent / "data"
TAG = "CONTINUE_FINAL_MESSAGE_TAG "
# The time that strftime_now sees, here and in the tests (tests/jinja/reference_time.h).
NOW = datetime.datetime(2026, 3, 14, 15, 9, 26)
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}

CHATS = [
    [{"role": "user", "content": "hi"}],
    [
        {"role": "system", "content": "Be brief. e < im"},
        {"role": "user", "content": f"a</think>b\n{TAG}"},
        {"role": "assistant", "content": "It is"},
        {"role": "user", "content": "A, B or C?\n"},
    ],
]
FINALS = [
    # short texts that also occur in the templates' markers and in the chats
    *"<e>AC.t",
    *["im", "[", "end", "<|", "|>", "s>", "assistant", "user", "hi"],
    # white space
    *["", " ", "\n", "\t", "\r\n", "\n\n ", "\u00a0", "\u3000"],
    *["It is", "It is ", " It is", "It is\n", "\n\nIt is \n", "a\nb\n\n  c", "\u3000x\u2003"],
    # letters of several bytes
    *["日本", "é", "🙂 ", "e\u0301"],
    # markers
    *["<|im_end|>", "<|im_end|>\n", "<|im_start|>assistant\n", "</s>", "<s>", "[/INST]", "[INST] "],
    *["<|eot_id|>", "<|end|>\n", "<|start_header_id|>", "<|end_of_sentence|>"],
    *["<think>", "<think>\n", "<think>\nso", "<think>\na\n</think>\n\nb", "a</think>b", "</think>"],
    *["</think>\n\n", TAG, TAG.strip(), f"x{TAG}y", "CONTINUE_FINAL"],
    *['{"a": ', "```python\n", "<tool_call>\n{"],
]


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return NOW


def rendered(source, messages):
    try:
        texts, _ = chat_template_utils.render_jinja_template(
            [messages], chat_template=source, continue_final_message=True, **SPECIAL
        )
        return texts[0]
    except Exception:
        return None


def cases(templates):
    for path in templates:
        source = path.read_text()
        for c, chat in enumerate(CHATS):
            for final in FINALS:
                text = rendered(source, [*chat, {"role": "assistant", "content": final}])
                case = {"template": path.stem, "chat": c, "final": final, "text": text}
                if text is not None and not text.rstrip().endswith(final.strip()):
                    case["is_changed"] = True
                yield case


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--templates", default=DATA / "jinja" / "templates", type=pathlib.Path)
    parser.add_argument("--out", default=DATA / "chats" / "continued.jsonl", type=pathlib.Path)
    args = parser.parse_args()
    chat_template_utils.datetime = Clock
    with args.out.open("w") as out:
        out.write(json.dumps({"chats": CHATS, "special": SPECIAL}, ensure_ascii=False) + "\n")
        for case in cases(sorted(args.templates.glob("*.jinja"))):
            out.write(json.dumps(case, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
