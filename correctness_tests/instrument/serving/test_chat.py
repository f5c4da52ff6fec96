"""A chat workload is what the model's users send: in its own template, and ending by itself."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace

import pytest

from fixtures.deployments import load_box
from fixtures.errors import MeasurementFailed, WorkloadError
from fixtures.serving.client_stream import TokenLedger
from fixtures.serving.workloads import load_workload
from fixtures.serving.workloads.workload import ChatTemplate, read_template
from fixtures.session.collection import chosen_workloads

KIMI_LIKE = (
    "{%- for m in messages -%}<|im_{{ m['role'] }}|>{{ m['role'] }}<|im_middle|>{{ m['content'] }}<|im_end|>"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|im_assistant|>assistant<|im_middle|>{%- endif -%}"
)
BOX = load_box("pcie_blackwell")
CHAT = [name for name in BOX.deployment("baseline_bs128").workloads if name.startswith("chat_")]


@pytest.fixture
def model(tmp_path):
    def write(beside=None, **config):
        (tmp_path / "config.json").write_text("{}")
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        if beside is not None:
            (tmp_path / "chat_template.jinja").write_text(beside)
        return tmp_path

    return write


def test_the_template_is_rendered_as_transformers_does(model):
    """Against transformers' own rendering, with a loop, a condition, a special token and a call that refuses."""
    from transformers.utils.chat_template_utils import render_jinja_template

    text = (
        "{{ bos_token }}\n{% for m in messages %}\n{% if m.role not in ['user'] %}\n{{ raise_exception('no') }}\n"
        "{% endif %}\n[{{ m.role }}]{{ m.content | trim }}\n{% endfor %}\n"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    folder = model(chat_template=text, bos_token={"content": "<s>"})
    said = "  What is 2 + 2?\n"
    asked = [[{"role": "user", "content": said}]]
    theirs, _ = render_jinja_template(asked, chat_template=text, add_generation_prompt=True, bos_token="<s>")
    assert read_template(folder).render(said) == theirs[0]


def test_a_template_in_a_file_of_its_own_counts(model):
    folder = model(beside=KIMI_LIKE, chat_template="another")
    assert read_template(folder).render("hi") == (
        "<|im_user|>user<|im_middle|>hi<|im_end|><|im_assistant|>assistant<|im_middle|>"
    )


def test_a_beginning_that_the_tokenizer_writes_is_not_written_twice(model):
    folder = model(chat_template="{{ bos_token }}" + KIMI_LIKE, bos_token="<s>", add_bos_token=True)
    assert read_template(folder).render("hi").startswith("<|im_user|>")


@pytest.mark.parametrize("name", CHAT)
def test_a_chat_workload_sends_messages_that_end_by_themselves(model, name):
    plain = load_workload(name, "pcie_blackwell")
    with pytest.raises(WorkloadError, match="template"):
        plain.measured_prompts()
    sent = plain.for_model(model(beside=KIMI_LIKE))
    assert all(each.text.endswith("<|im_assistant|>assistant<|im_middle|>") for each in sent.measured_prompts())
    assert not sent.sampling["ignore_eos"]
    assert 2 <= sent.min_new_tokens < sent.max_new_tokens
    other = plain.for_model(model(beside=KIMI_LIKE.replace("middle", "centre")))
    assert other.fingerprint() != sent.fingerprint(), "another template is another workload"
    shorter = replace(sent, min_new_tokens=sent.min_new_tokens + 1)
    assert shorter.fingerprint() != sent.fingerprint()


def test_raw_workloads_are_what_they_were(model):
    raw = load_workload("single_stream", "pcie_blackwell")
    assert raw.for_model(model()) is raw
    assert (raw.sampling, raw.min_new_tokens) == ({"temperature": 0.0, "ignore_eos": True}, 0)


@pytest.mark.parametrize("count", [15, 16, 768])
def test_an_answer_that_ends_too_early_is_no_evidence(count):
    ledger = TokenLedger("chat: prompt 1")
    end = {"finish_reason": {"type": "stop"}, "completion_tokens": count}
    ledger.accept(json.dumps({"output_ids": [*range(count)], "meta_info": end}).encode(), 1.0)
    with nullcontext() if count >= 16 else pytest.raises(MeasurementFailed, match="15 tokens are too few"):
        ledger.check(768, ignore_eos=False, least=16)


def test_the_gpu_box_asks_chats_first_and_a_model_without_a_template_is_told(model, monkeypatch):
    deployment = BOX.deployment("eagle3")
    assert len(CHAT) >= 2
    assert list(deployment.workloads[: len(CHAT)]) == CHAT
    monkeypatch.setenv("KIMI_K25_MODEL", str(model()))
    with pytest.raises(WorkloadError, match="has no chat template; leave chat workloads out"):
        chosen_workloads(deployment, "pcie_blackwell", ())
    monkeypatch.setenv("KIMI_K25_MODEL", str(model(beside=KIMI_LIKE)))
    assert all(each.template for each in chosen_workloads(deployment, "pcie_blackwell", CHAT))
    assert not any(load_workload(name, "cpu").chat for name in load_box("cpu").deployment("baseline").workloads)


@pytest.mark.parametrize("text", ["{{ raise_exception('no') }}", "{% for %}", "nothing of it", "{{ messages[0].x.y }}"])
def test_a_template_that_fails_is_one_line(text):
    with pytest.raises(WorkloadError, match=r"there: the chat template (fails: |leaves)"):
        ChatTemplate(text, "there").render("hello")
