#!/usr/bin/env python3
"""Writes templates.jsonl: conversations as the publishers' own chat templates render them, through Jinja.

A line a template: its name here, the Jinja text, BOS and EOS, and cases: the messages, what Jinja makes of them ("text", or
null where the template raises), and the parts of it that are to be trained: from behind the head of each assistant's turn to
the end of its end token.

Usage: templates.py > templates.jsonl; and for a template that is too long to repeat here, without its Jinja text:
templates.py ../../../shared/data/tokenizers/qwen3/tokenizer_config.json > qwen3.jsonl"""
import json
import re
import sys

from jinja2.exceptions import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

ALTERNATE = ("{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must "
             "alternate user/assistant/user/assistant/...') }}{% endif %}")

CHATML = (r"{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + "
          r"'\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
SMOLLM2 = (r"{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n"
           r"You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}"
           r"{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}")
QWEN25 = r"""{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You are Qwen, created by Alibaba Cloud. You are a helpful assistant.' }}
    {%- endif %}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}
    {%- else %}
        {{- '<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
"""
LLAMA2 = ("{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = "
          "messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}"
          "{% for message in loop_messages %}" + ALTERNATE +
          r"{% if loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\n' + system_message + "
          r"'\n<</SYS>>\n\n' + message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}"
          "{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
          "{% elif message['role'] == 'assistant' %}{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}")
LLAMA3 = ("{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + "
          "message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}"
          "{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}")
LLAMA31 = r"""{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{{- "Cutting Knowledge Date: December 2023\n" }}
{{- "Today Date: " + date_string + "\n\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
"""
MISTRAL01 = ("{{ bos_token }}{% for message in messages %}" + ALTERNATE +
             "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == "
             "'assistant' %}{{ message['content'] + eos_token + ' ' }}{% else %}{{ raise_exception('Only user and assistant "
             "roles are supported!') }}{% endif %}{% endfor %}")
MISTRAL02 = MISTRAL01.replace("eos_token + ' '", "eos_token")
MISTRAL02_SYSTEM = r"""{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}

{{- bos_token }}
{%- for message in loop_messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('After the optional system message, conversation roles must alternate user/assistant') }}
    {%- endif %}
    {%- if message['role'] == 'user' %}
        {%- if loop.first and system_message is defined %}
            {{- ' [INST] ' + system_message + '\n\n' + message['content'] + ' [/INST]' }}
        {%- else %}
            {{- ' [INST] ' + message['content'] + ' [/INST]' }}
        {%- endif %}
    {%- elif message['role'] == 'assistant' %}
        {{- ' ' + message['content'] + eos_token}}
    {%- endif %}
{%- endfor %}
"""
MISTRAL03 = r"""{{- bos_token }}
{%- for message in messages %}
    {%- if (message["role"] == "user") != (loop.index0 % 2 == 0) %}
        {{- raise_exception("conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif %}
    {%- if message["role"] == "user" %}
        {{- "[INST] " + message["content"] + "[/INST]" }}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- endif %}
{%- endfor %}
"""
GEMMA = ("{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
         "{% for message in messages %}" + ALTERNATE +
         "{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}"
         r"{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}")
GEMMA3 = r"""{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- set first_user_prefix = messages[0]['content'] + '\n\n' -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- endif -%}
    {{ '<end_of_turn>\n' }}
{%- endfor -%}
"""
PHI3 = (r"{% for message in messages %}{% if message['role'] == 'system' %}{{'<|system|>\n' + message['content'] + '<|end|>\n'}}"
        r"{% elif message['role'] == 'user' %}{{'<|user|>\n' + message['content'] + '<|end|>\n'}}{% elif message['role'] == "
        r"'assistant' %}{{'<|assistant|>\n' + message['content'] + '<|end|>\n'}}{% endif %}{% endfor %}"
        r"{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}")
ZEPHYR = r"""{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>\n' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>\n' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>\n'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}"""

# name, variant, Jinja, BOS, EOS, head and end of an assistant's turn
TEMPLATES = [
    ("chatml", "plain", CHATML, None, "<|im_end|>", "<|im_start|>assistant\n", "<|im_end|>"),
    ("chatml", "SmolLM2", SMOLLM2, "<|im_start|>", "<|im_end|>", "<|im_start|>assistant\n", "<|im_end|>"),
    ("chatml", "Qwen2.5", QWEN25, None, "<|im_end|>", "<|im_start|>assistant\n", "<|im_end|>"),
    ("llama2", "Llama-2", LLAMA2, "<s>", "</s>", "[/INST]", "</s>"),
    ("llama3", "Llama-3", LLAMA3, "<|begin_of_text|>", "<|eot_id|>",
     "<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>"),
    ("llama3", "Llama-3.1", LLAMA31, "<|begin_of_text|>", "<|eot_id|>",
     "<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>"),
    ("mistral", "0.1", MISTRAL01, "<s>", "</s>", "[/INST]", "</s>"),
    ("mistral", "0.2", MISTRAL02, "<s>", "</s>", "[/INST]", "</s>"),
    ("mistral", "0.2 with system", MISTRAL02_SYSTEM, "<s>", "</s>", "[/INST]", "</s>"),
    ("mistral", "0.3", MISTRAL03, "<s>", "</s>", "[/INST]", "</s>"),
    ("gemma", "1", GEMMA, "<bos>", "<eos>", "<start_of_turn>model\n", "<end_of_turn>"),
    ("gemma", "3", GEMMA3, "<bos>", "<eos>", "<start_of_turn>model\n", "<end_of_turn>"),
    ("phi3", "Phi-3", PHI3, None, "<|endoftext|>", "<|assistant|>\n", "<|end|>"),
    ("zephyr", "Zephyr", ZEPHYR, None, "</s>", "<|assistant|>\n", "</s>"),
]


def turn(role, content):
    return {"role": role, "content": content}


CONVERSATIONS = [
    [turn("user", "How deep is the harbour?"), turn("assistant", "Nine metres.")],
    [turn("system", "Answer in one word."), turn("user", "Which way is the mill?"), turn("assistant", "North."),
     turn("user", "And the river?"), turn("assistant", "East.")],
    [turn("system", "  Say little. \n"), turn("user", " \n Über 3 Häuser?\u00a0\u2003\n"), turn("assistant", "\n\n  Ja – 日本も 🙂 \n"),
     turn("user", "\t"), turn("assistant", "")],
    [turn("user", ""), turn("assistant", "  two\n\nlines  ")],
    [turn("system", "Rule."), turn("user", "  "), turn("assistant", "yes")],
    [turn("user", "one"), turn("user", "two"), turn("assistant", "three")],
    [turn("assistant", "I begin."), turn("user", "No."), turn("assistant", "Yes.")],
]


THOUGHTS = [
    [turn("user", "2+2?"), turn("assistant", "<think>\nTwo and two.\n</think>\n\n4")],
    [turn("user", "2+2?"), turn("assistant", "<think>\nTwo.\n</think>\n\n4"), turn("user", "3+3?"),
     turn("assistant", "\n<think>\n\nThree </think> no.\n\n</think>\n\n\n6\n")],
    [turn("system", "S"), turn("user", "a"), turn("assistant", "x</think>y"), turn("assistant", "z")],
]


def raise_exception(message):
    raise TemplateError(message)


def main():
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = raise_exception
    templates = TEMPLATES
    conversations = CONVERSATIONS
    if len(sys.argv) > 1:
        with open(sys.argv[1], encoding="utf-8") as file:
            config = json.load(file)
        templates = [("chatml", "Qwen3", config["chat_template"], None, "<|im_end|>", "<|im_start|>assistant\n", "<|im_end|>")]
        conversations = CONVERSATIONS + THOUGHTS
    for name, variant, jinja, bos, eos, head, end in templates:
        template = environment.from_string(jinja)
        cases = []
        for messages in conversations:
            try:
                text = template.render(messages=messages, bos_token=bos or "", eos_token=eos, add_generation_prompt=False)
                trained = re.findall(re.escape(head) + "(.*?" + re.escape(end) + ")", text, re.DOTALL)
            except TemplateError:
                text, trained = None, []
            cases.append({"messages": messages, "text": text, "trained": trained})
        line = {"name": name, "variant": variant, "bos": bos, "eos": eos, "cases": cases}
        if len(sys.argv) == 1:
            line["jinja"] = jinja
        print(json.dumps(line, ensure_ascii=False))


main()
