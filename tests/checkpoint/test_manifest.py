"""What a manifest says is what is accepted; the newest whole checkpoint wins; nothing starts at 0 in silence."""

import hashlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skytune.checkpoint import manifest as m
from skytune.checkpoint.resume import check_identity, differences
from skytune.config import UserError

names = st.text("abcdefgh.-_0123456789", min_size=1, max_size=12).filter(lambda n: n[0] != "." and n != m.NAME)
folders = st.dictionaries(names, st.binary(max_size=40), min_size=1, max_size=5)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def entry(data: bytes) -> m.FileEntry:
    return m.FileEntry(size=len(data), sha256=hashlib.sha256(data).hexdigest())


def made(folder: dict[str, bytes], step: int = 3, **more: Any) -> m.Manifest:
    return m.build("run", step, {name: entry(data) for name, data in folder.items()}, created=1.5, **more)


def problems(manifest: m.Manifest, folder: dict[str, bytes]) -> list[str]:
    return m.verify(
        manifest, lambda name: len(folder[name]) if name in folder else None, lambda name: entry(folder[name])
    )


@given(folders, st.integers(0, 10**9), st.dictionaries(st.text(max_size=5), json_values, max_size=3))
def test_manifest_comes_back_as_it_was_written(folder, step, state):
    manifest = made(folder, step, state=state, decisive={"seed": 1}, world_size=2)
    data = m.serialise(manifest)
    back = m.parse(data, run_key="run", step=step)
    assert m.serialise(back) == data
    assert (back.files, back.step, back.world_size, back.bytes) == (
        manifest.files,
        step,
        2,
        sum(map(len, folder.values())),
    )


@given(folders, st.data())
def test_any_changed_bit_of_a_manifest_is_noticed(folder, data):
    raw = bytearray(m.serialise(made(folder, state={"loss": 0.25, "name": "é"})))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(m.ManifestError):
        m.parse(bytes(raw))


@given(folders, st.integers(0, 10**6))
def test_a_manifest_cut_short_is_noticed(folder, cut):
    raw = m.serialise(made(folder))
    with pytest.raises(m.ManifestError, match="damaged"):
        m.parse(raw[: cut % len(raw)])


def test_a_manifest_of_another_run_step_or_version_is_refused():
    raw = m.serialise(made({"a": b"1"}))
    with pytest.raises(m.ManifestError, match="belongs to the run run"):
        m.parse(raw, run_key="other")
    with pytest.raises(m.ManifestError, match="of step 3"):
        m.parse(raw, step=4)
    with pytest.raises(m.ManifestError, match="schema 2, this version reads 1"):
        m.parse(raw.replace(b'"schema": 1', b'"schema": 2'))
    for name in ("", "a/b", ".hidden", m.NAME):
        with pytest.raises(ValueError, match=r"cannot be the name|not trusted as a path"):
            made({name: b"1"})


def harm(data: bytes, how: str, where: int) -> bytes | None:
    if how == "delete":
        return None
    if how == "truncate":
        return data[: where % max(len(data), 1)]
    if how == "zero":
        return bytes(len(data))
    changed = bytearray(data)
    if changed:
        changed[where % len(changed)] ^= 1 << (where % 8)
    return bytes(changed)


@given(folders, st.data(), st.sampled_from(["delete", "truncate", "zero", "flip"]), st.integers(0, 10**6))
def test_every_harm_to_a_file_is_found_and_named(folder, data, how, where):
    manifest = made(folder)
    assert problems(manifest, folder) == []
    name = data.draw(st.sampled_from(sorted(folder)))
    changed = harm(folder[name], how, where)
    now = {**folder, name: changed} if changed is not None else {n: d for n, d in folder.items() if n != name}
    found = problems(manifest, now)
    if changed == folder[name]:  # nothing to harm: an empty file, or one of zeros
        assert found == []
    else:
        assert len(found) == 1 and found[0].startswith(f"{name} ")


def test_sizes_alone_do_not_read_files():
    manifest = made({"a": b"12"})
    assert m.verify(manifest, lambda name: 2) == []
    assert m.verify(manifest, lambda name: 1) == ["a has 1 bytes instead of 2"]

    def vanished(name: str) -> m.FileEntry:
        raise FileNotFoundError(name)

    assert m.verify(manifest, lambda name: 2, vanished) == ["a is missing"]


kinds = st.sampled_from(["whole", "broken", "unreadable", "unfinished"])


def verdict(kind: str, step: int) -> m.Verdict:
    manifest = made({"a": b"1"}, step)
    return {
        "whole": m.Verdict(manifest=manifest),
        "broken": m.Verdict(manifest=manifest, problems=("a is missing",)),
        "unreadable": m.Verdict(problems=("manifest.json is damaged",)),
        "unfinished": m.Verdict(problems=("its save was not finished",), unfinished=True),
    }[kind]


@settings(max_examples=150)
@given(st.dictionaries(st.integers(0, 10**6), kinds, max_size=6), st.booleans(), st.randoms())
def test_newest_whole_one_is_chosen_and_zero_never_in_silence(lying, remembered, shuffle):
    steps = list(lying)
    shuffle.shuffle(steps)
    completed = max(lying, default=7) if remembered else None
    asked = []

    def check(step: int) -> m.Verdict:
        asked.append(step)
        return verdict(lying[step], step)

    whole = [step for step, kind in lying.items() if kind == "whole"]
    lost = remembered or any(kind in ("broken", "unreadable") for kind in lying.values())
    if not whole and lost:
        with pytest.raises(UserError, match="there is whole") as refused:
            m.choose(steps, check, where="store", completed=completed)
        assert all(m.step_name(step) in str(refused.value) for step in lying)
        return
    choice = m.choose(steps, check, where="store", completed=completed)
    if not whole:
        assert choice is None
        return
    assert choice is not None and choice.manifest.step == max(whole)
    newer = sorted((step for step in lying if step > max(whole)), reverse=True)
    assert [line.split(":")[0] for line in choice.skipped] == [m.step_name(step) for step in newer]
    assert asked == [*newer, max(whole)]  # older ones cost nothing


@given(st.integers(0, 10**12))
def test_step_names(step):
    assert m.parse_step(m.step_name(step)) == step


def test_foreign_names_are_no_steps():
    for name in ("step-1200", ".step-00001200-77", "step-00001200.tmp", "step-000000001200", "latest", "step-0000120x"):
        assert m.parse_step(name) is None


def test_another_run_is_refused_with_the_difference():
    here = {"batch": {"global_size": 32}, "fingerprints": {"data": "abc"}, "betas": (0.9, 0.99)}
    manifest = made({"a": b"1"}, decisive=here)
    check_identity(manifest, here, "PATH")
    other = {"batch": {"global_size": 16}, "fingerprints": {"data": "abc"}, "betas": [0.9, 0.99], "seed": 1}
    assert differences(other, manifest.decisive) == [
        "batch.global_size: 32 there, 16 here",
        "seed: nothing there, 1 here",
    ]
    with pytest.raises(UserError, match=r"resume=PATH: is of another run, run: batch.global_size: 32 there, 16 here"):
        check_identity(manifest, other, "PATH")
