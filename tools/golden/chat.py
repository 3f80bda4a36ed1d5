"""Conversations in every chat format, written and encoded by transformers' apply_chat_template.

Writes out_dir/chat/cases.json. The templates are short ones of our own, one for each format and
each variant that Sluice tells apart; messages are written here. Ids are those of a golden tokenizer
(golden.tokenizers, which runs before) with the tokens of the format added.
"""

import json
from pathlib import Path

from transformers import PreTrainedTokenizerFast

CHATML = ("{% for m in messages %}DEFAULT{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] "
          "+ '<|im_end|>' + '\\n' }}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
CHATML_DEFAULT = ("{% if loop.first and m['role'] != 'system' %}"
                  "{{ '<|im_start|>system\\nYou answer briefly.<|im_end|>\\n' }}{% endif %}")

LLAMA3 = ("{{ bos_token }}PREAMBLE{% for m in messages %}"
          "{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\\n\\n' + m['content'] | trim "
          "+ '<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}"
          "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}")
LLAMA31 = LLAMA3.replace(
    "PREAMBLE",
    "{% set date_string = \"1 Feb 2024\" %}"
    "{{ '<|start_header_id|>system<|end_header_id|>\\n\\n' }}"
    "{{ 'Cutting Knowledge Date: March 2023\\n' }}{{ 'Today Date: ' + date_string + '\\n\\n' }}"
    "{% if messages[0]['role'] == 'system' %}{{ messages[0]['content'] | trim }}"
    "{% set messages = messages[1:] %}{% endif %}{{ '<|eot_id|>' }}")

# The system's message goes into the first user message.
TAKE_SYSTEM = ("{% set system = '' %}{% if messages[0]['role'] == 'system' %}"
               "{% set system = messages[0]['content'] %}{% set messages = messages[1:] %}{% endif %}")

LLAMA2 = (TAKE_SYSTEM + "{% for m in messages %}{% if m['role'] == 'user' %}"
          "{% set text = m['content'] %}{% if loop.first and system %}"
          "{% set text = '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' + text %}{% endif %}"
          "{{ bos_token + '[INST] ' + text.strip() + ' [/INST]' }}{% else %}"
          "{{ ' ' + m['content'].strip() + ' ' + eos_token }}{% endif %}{% endfor %}")


def mistral(user_open, user_close, answer):
    """Versions differ in spaces."""
    return ("{{ bos_token }}" + TAKE_SYSTEM + "{% for message in messages %}"
            "{% if message['role'] == 'user' %}{% set text = message['content'] %}"
            "{% if loop.first and system %}{% set text = system + '\\n\\n' + text %}{% endif %}"
            "{{ '" + user_open + "' + text + '" + user_close + "' }}{% else %}"
            "{{ " + answer + "message['content'] + eos_token }}{% endif %}{% endfor %}")


MISTRAL_SYSTEM = ("{{ bos_token }}{% for message in messages %}{% if message['role'] == 'system' %}"
                  "{{ '[SYSTEM_PROMPT]' + message['content'] + '[/SYSTEM_PROMPT]' }}"
                  "{% elif message['role'] == 'user' %}{{ '[INST]' + message['content'] + '[/INST]' }}"
                  "{% else %}{{ message['content'] + eos_token }}{% endif %}{% endfor %}")

GEMMA = ("{{ bos_token }}" + TAKE_SYSTEM + "{% for m in messages %}"
         "{% set role = 'model' if m['role'] == 'assistant' else m['role'] %}"
         "{{ '<start_of_turn>' + role + '\\n' }}"
         "{% if loop.first and system %}{{ system + '\\n\\n' }}{% endif %}"
         "{{ m['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}"
         "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}")

PHI3 = ("FIRST{% for m in messages %}{% if m['role'] == 'system' %}"
        "{{ '<|system|>\\n' + m['content'] + '<|end|>\\n' }}{% elif m['role'] == 'user' %}"
        "{{ '<|user|>\\n' + m['content'] + '<|end|>\\n' }}{% else %}"
        "{{ '<|assistant|>\\n' + m['content'] + '<|end|>\\n' }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}")

ZEPHYR = ("{% for m in messages %}\n{% if m['role'] == 'user' %}\n"
          "{{ '<|user|>\\n' + m['content'] + eos_token }}\n{% elif m['role'] == 'system' %}\n"
          "{{ '<|system|>\\n' + m['content'] + eos_token }}\n{% else %}\n"
          "{{ '<|assistant|>\\n' + m['content'] + eos_token }}\n{% endif %}\n"
          "{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n"
          "{% endfor %}")

INST = ["[INST]", "[/INST]"]
ROLES = ["<|system|>", "<|user|>", "<|assistant|>", "<|end|>"]
HEADERS = ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]

# Name, format, template, golden tokenizer, tokens that are added to it.
VARIANTS = [
    ("chatml", "chatml", CHATML.replace("DEFAULT", ""), "qwen2", ["<|im_start|>", "<|im_end|>"]),
    ("chatml-default", "chatml", CHATML.replace("DEFAULT", CHATML_DEFAULT), "qwen2",
     ["<|im_start|>", "<|im_end|>"]),
    ("chatml-line-ends", "chatml", CHATML.replace("DEFAULT", CHATML_DEFAULT).replace("\\n", "\n"),
     "qwen2", ["<|im_start|>", "<|im_end|>"]),
    ("llama2", "llama2", LLAMA2, "llama2", []),
    ("llama3", "llama3", LLAMA3.replace("PREAMBLE", ""), "llama3", HEADERS),
    ("llama3-dates", "llama3", LLAMA31, "llama3", HEADERS),
    ("mistral-1", "mistral", mistral("[INST] ", " [/INST]", ""), "llama2", []),
    ("mistral-3", "mistral", mistral("[INST] ", "[/INST]", "' ' + "), "llama2-metaspace", INST),
    ("mistral-tekken", "mistral", mistral("[INST]", "[/INST]", ""), "llama3", INST),
    ("mistral-system", "mistral", MISTRAL_SYSTEM, "llama3",
     INST + ["[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"]),
    ("gemma", "gemma", GEMMA, "gemma", ["<start_of_turn>", "<end_of_turn>"]),
    ("phi3", "phi3", PHI3.replace("FIRST", ""), "phi3", ROLES),
    ("phi3-first", "phi3", PHI3.replace("FIRST", "{{ bos_token }}"), "phi3", ROLES),
    ("zephyr", "zephyr", ZEPHYR, "llama2", ROLES[:3]),
]

SYSTEM = {"role": "system", "content": "Speak plainly."}
QUESTION = {"role": "user", "content": "What is the capital of France?"}
SPACED = {"role": "user", "content": "  Name three\n\ncolours, and no more. \n"}
ANSWER = {"role": "assistant", "content": "Paris."}
CONVERSATIONS = [
    [QUESTION],
    [SYSTEM, QUESTION],
    [SPACED],
    [SYSTEM, SPACED],
    [QUESTION, ANSWER, SPACED],
    [SYSTEM, QUESTION, ANSWER, SPACED, ANSWER, QUESTION],
]


def token_content(value) -> str:
    """Of a config: a text, or an object that has it."""
    return value["content"] if isinstance(value, dict) else value


def make_tokenizer(folder: Path, added: list[str]) -> PreTrainedTokenizerFast:
    """A golden tokenizer with special tokens of its config and of the format."""
    config = json.loads((folder / "tokenizer_config.json").read_text())
    names = {key: token_content(config[key]) for key in ("bos_token", "eos_token")
             if config.get(key)}
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), **names)
    tokenizer.add_special_tokens({"additional_special_tokens": added})
    return tokenizer


def make(out_dir: Path) -> None:
    """Writes chat/cases.json."""
    cases = []
    for name, style, template, base, added in VARIANTS:
        tokenizer = make_tokenizer(out_dir / "tokenizers" / base, added)
        tokenizer.chat_template = template
        conversations = []
        for messages in CONVERSATIONS:
            options = {"add_generation_prompt": True}
            text = tokenizer.apply_chat_template(messages, tokenize=False, **options)
            ids = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False, **options)
            conversations.append({"messages": messages, "text": text, "ids": ids})
        cases.append({"name": name, "format": style, "template": template, "tokenizer": base,
                      "added": {token: tokenizer.convert_tokens_to_ids(token) for token in added},
                      "conversations": conversations})
    (out_dir / "chat").mkdir(exist_ok=True)
    (out_dir / "chat" / "cases.json").write_text(
        json.dumps(cases, ensure_ascii=False, indent=1) + "\n")
