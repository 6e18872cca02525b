"""A tiny model with a tokenizer, files of sentences, and a stand-in for the Hub on this machine."""

import hashlib
import http.server
import json
import os
import re
import shlex
import threading
import urllib.parse
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]

WORDS = [
    "a",
    "bad",
    "boring",
    "dull",
    "film",
    "good",
    "great",
    "is",
    "movie",
    "plot",
    "the",
    "this",
    "was",
    ".",
    ",",
    '"',
]


@pytest.fixture(autouse=True)
def _own_folders(tmp_path_factory, monkeypatch):
    """Nothing is written into the user's home or into the folder the tests are started from."""
    monkeypatch.setenv("SKYTUNE_HOME", str(tmp_path_factory.mktemp("home")))


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """Folder of a tiny BERT (16 positions) whose tokenizer knows a few whole words."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("tiny")
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    raw = Tokenizer(models.WordLevel({w: n for n, w in enumerate([*special, *WORDS])}, unk_token="[UNK]"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    raw.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=raw,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_max_length=16,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    ).save_pretrained(folder)
    torch.manual_seed(1)
    config = BertConfig(
        vocab_size=len(WORDS) + 4,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
    )
    BertModel(config).save_pretrained(folder)
    return str(folder)


@pytest.fixture
def model(tiny):
    from skytune.config import ModelConfig

    return ModelConfig(name=tiny)


@pytest.fixture
def write(tmp_path):
    """write(name, content) makes a file and returns its path as text."""

    def _write(name, content):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return _write


def lines(count, start=0, names=("0", "1")):
    return [(f"the film number {n} is good", names[n % len(names)]) for n in range(start, start + count)]


@pytest.fixture
def table(write):
    """table(name, rows) writes sentences as csv, tsv or jsonl, and returns the path."""

    def _table(name, rows, columns=("text", "label")):
        if name.endswith((".jsonl", ".json")):
            content = "".join(json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in rows)
        else:
            mark = "\t" if name.endswith(".tsv") else ","
            content = "".join(mark.join(map(str, row)) + "\n" for row in [columns, *rows])
        return write(name, content)

    return _table


@pytest.fixture
def rows():
    """rows(count, start=0, names=("0", "1")): different sentences with classes in turn."""
    return lines


@pytest.fixture
def files():
    """files(train, **more) is a `DataConfig` that reads files."""
    from skytune.config import DataConfig, DataSource

    def _files(train, **more):
        return DataConfig(source=DataSource.files, train=train, **more)

    return _files


@pytest.fixture
def ways_out(files):
    """ways_out(error, path, **more) yields a `DataConfig` for every way out that a message names: its words typed as
    they stand, through Hydra."""
    from skytune.config.compose import compose_run

    def _ways_out(error, path, **more):
        for clause in str(error).split("; "):
            words = [word for word in shlex.split(clause) if re.match(r"data\.\w+=", word) and word[-1] != ":"]
            if words:
                kept = [f"data.{key}={value}" for key, value in more.items()]
                yield compose_run(REPOSITORY / "configs", ["data=files", f"data.train={path}", *kept, *words]).data

    return _ways_out


class Hub(http.server.ThreadingHTTPServer):
    """As much of the Hub's protocol as its clients need to read a repository; each folder is one repository."""

    daemon_threads = True

    def __init__(self, root: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.root = root
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.requests: list[str] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def files(self, kind, name):
        folder = self.root / kind / name
        return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}

    def commit(self, kind, name):
        return hashlib.sha1(repr(sorted(self.files(kind, name).items())).encode()).hexdigest()


def tree(entries, under, recursive):
    """The entries below a folder: all of them, or its own files and folders."""
    inside = [entry for entry in entries if entry["path"].startswith(f"{under}/" if under else "")]
    if recursive:
        return inside
    depth = len(under.split("/")) if under else 0
    folders = {"/".join(e["path"].split("/")[: depth + 1]) for e in inside if e["path"].count("/") > depth}
    files = [entry for entry in inside if entry["path"].count("/") == depth]
    return files + [{"type": "directory", "path": path, "oid": "0" * 40, "size": 0} for path in sorted(folders)]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one packet

    def log_message(self, *_):
        pass

    def answer(self, status, body=b"", headers=None):
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_GET(self):
        if int(self.headers.get("Content-Length") or 0):
            self.posted = self.rfile.read(int(self.headers["Content-Length"]))
        url = urllib.parse.urlsplit(self.path)
        self.server.requests.append(f"{self.command} {url.path}")
        parts = [urllib.parse.unquote(part) for part in url.path.strip("/").split("/")]
        if parts[0] == "api":
            return self.api(parts[1], "/".join(parts[2:4]), parts[4:])
        kind = "datasets" if parts[0] == "datasets" else "models"
        parts = parts[1:] if kind == "datasets" else parts
        if len(parts) > 4 and parts[2] == "resolve":
            return self.resolve(kind, "/".join(parts[:2]), parts[3], "/".join(parts[4:]))
        return self.answer(404)

    do_HEAD = do_POST = do_GET

    def known(self, kind, name, revision):
        if not (self.server.root / kind / name).is_dir():
            self.answer(404, {}, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"})
            return False
        if revision not in ("main", self.server.commit(kind, name)):
            self.answer(404, {}, {"X-Error-Code": "RevisionNotFound", "X-Error-Message": "Invalid rev id"})
            return False
        return True

    def api(self, kind, name, rest):
        revision = rest[1] if len(rest) > 1 else "main"
        if not self.known(kind, name, revision):
            return None
        files = self.server.files(kind, name)
        entries = [
            {"type": "file", "path": path, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
            for path, data in files.items()
        ]
        if rest and rest[0] == "tree":
            under = "/".join(rest[2:])
            return self.answer(200, tree(entries, under, "recursive=true" in self.path.lower()))
        if rest and rest[0] == "paths-info":
            asked = urllib.parse.parse_qs(self.posted.decode()).get("paths") or json.loads(self.posted)["paths"]
            return self.answer(200, [entry for entry in entries if entry["path"] in asked])
        return self.answer(
            200,
            {
                "id": name,
                "sha": self.server.commit(kind, name),
                "private": False,
                "tags": [],
                "downloads": 0,
                "likes": 0,
                "siblings": [{"rfilename": path} for path in files],
            },
        )

    def resolve(self, kind, name, revision, path):
        if not self.known(kind, name, revision):
            return None
        data = self.server.files(kind, name).get(path)
        if data is None:
            return self.answer(404, {}, {"X-Error-Code": "EntryNotFound", "X-Error-Message": "no such file"})
        headers = {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X-Repo-Commit": self.server.commit(kind, name)}
        return self.answer(200, data, headers)


@pytest.fixture
def hub(tmp_path):
    server = Hub(tmp_path / "hub")
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def process_env(tmp_path):
    """Environment of a fresh process with nothing cached, started from an empty folder."""
    keep = {
        n: v for n, v in os.environ.items() if not n.startswith(("HF_", "HUGGINGFACE_", "TRANSFORMERS_", "SKYTUNE_"))
    }
    return {
        **keep,
        "PYTHONPATH": str(REPOSITORY / "src"),
        "HF_HOME": str(tmp_path / "hf"),
        "SKYTUNE_HOME": str(tmp_path / "home"),
        "HOME": str(tmp_path),
    }


@pytest.fixture
def sst2():
    """The folder with the real SST-2."""
    folder = REPOSITORY.parent / "shared" / "data" / "sst2"
    if not folder.is_dir():
        pytest.skip("the real SST-2 is not here")
    return folder


@pytest.fixture
def faults():
    """The folder of small inputs on which the product went wrong."""
    folder = REPOSITORY.parent / "shared" / "faults"
    if not folder.is_dir():
        pytest.skip("the folder of faults is not here")
    return folder
