"""`encode_corpus`: a Parquet file for each file, whole or absent, the same bits after any interruption."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import signal
import time
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import CommandLine
from object_store import BUCKET, keys

import raysent
from raysent.data.vocabulary import Vocabulary
from raysent.errors import ArtifactError, ConfigError, DataError, WorkerError
from raysent.evaluation.members import load_shared
from raysent.exports import corpus as module
from raysent.exports.corpus import encode_corpus
from raysent.kernels.device_choice import on_device
from raysent.models import ModelConfig, SentenceModel
from raysent.models.schemes.hash import HashEncoder
from raysent.models.vector_folder import VectorFolder

WORDS = ["a", "the", "cat", "sat", "on", "mat", "rain", "fell", "all", "night", "good", "film"]


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of four files, one in a folder of its own and one empty; blocks have 50 sentences."""
    monkeypatch.setattr(module, "BLOCK_SENTENCES", 50)
    generator = np.random.default_rng(0)
    folder = tmp_path / "texts"
    (folder / "more").mkdir(parents=True)
    for name, num_lines in (("a.txt", 120), ("b.txt", 50), ("more/c.txt", 7), ("empty.txt", 0)):
        lines = [
            " ".join(generator.choice(WORDS, size=generator.integers(0, 9)))
            for _ in range(num_lines)
        ]
        (folder / name).write_text("".join(f"{line}\n" for line in lines))
    return folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Return the folder of a small GRU."""
    config = ModelConfig.model_validate(
        {
            "encoder": {"type": "gru", "hidden_size": 6, "embedding": {"dim": 5}},
            "objective": {"type": "context_prediction"},
        }
    )
    built = SentenceModel.build(
        config, Vocabulary(["<pad>", "<unk>", *WORDS]), seed=1, max_length=20
    )
    built.eval().save(tmp_path / "model")
    return tmp_path / "model"


class FakeCluster:
    """Runs jobs in this process, `max_running` at once, the last that was started first.

    Attributes:
        has_gpus: Whether its nodes have GPUs.
        num_left: Jobs that end before a worker is lost for good.
        done: The jobs that have ended.
        gpus: GPUs of each job.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, has_gpus: bool = False) -> None:
        self.has_gpus, self.num_left = has_gpus, 100
        self.done: list[object] = []
        self.gpus: set[float] = set()
        monkeypatch.setattr(module, "map_on_ray", self.map)
        monkeypatch.setattr(module, "has_gpus", lambda: self.has_gpus)
        monkeypatch.setattr(module, "ray_session", lambda _: module.contextlib.nullcontext())
        load_shared.cache_clear()

    def map(self, function, jobs, *, address, max_running, gpus_each, on_wait):
        """Do what `map_on_ray` does."""
        assert address == "head:6379"
        self.gpus.add(gpus_each)
        jobs = iter(jobs)
        running = list(islice(jobs, max_running))
        while running:
            on_wait()
            if not self.num_left:
                raise WorkerError("--address: a job has ended 4 processes")
            self.num_left -= 1
            job = running.pop()
            running += islice(jobs, 1)
            result = function(pickle.loads(pickle.dumps(job)))
            self.done.append(job)
            yield len(self.done), result


def digests(folder: Path) -> dict[str, str]:
    """Return the hash of each Parquet file."""
    files = sorted(folder.rglob("*.parquet"))
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


def test_encode_corpus_writes_every_row_once_with_the_vectors_of_encode(
    texts, model, tmp_path
) -> None:
    """One Parquet file for each file of text, with its place, its rows, its lines and their vectors."""
    found = encode_corpus(model, texts, tmp_path / "out", workers=1)
    assert (found.num_files, found.num_rows, found.num_skipped, found.stopped) == (4, 177, 0, "")
    assert sorted(digests(tmp_path / "out")) == [
        "a.txt.parquet",
        "b.txt.parquet",
        "empty.txt.parquet",
        "more/c.txt.parquet",
    ]
    encoder = raysent.load(model)
    for name in ("a.txt", "more/c.txt", "empty.txt"):
        table = pq.read_table(tmp_path / "out" / f"{name}.parquet")
        lines = (texts / name).read_text().split("\n")[:-1]
        assert table["text"].to_pylist() == lines
        assert table["row"].to_pylist() == list(range(len(lines)))
        assert set(table["file"].to_pylist()) == ({name} if lines else set())
        assert table.schema.field("vector").type.list_size == found.width
        vectors = np.array(table["vector"].to_pylist(), np.float32).reshape(-1, found.width)
        np.testing.assert_allclose(vectors, encoder.encode(lines), atol=1e-6)


def test_encode_corpus_skips_what_is_done_and_encodes_a_changed_file_again(texts, tmp_path) -> None:
    """The same call does nothing; a file with other text, or that is damaged, is encoded."""
    encode_corpus("hash:8", texts, tmp_path / "out")
    assert encode_corpus("hash:8", texts, tmp_path / "out").num_skipped == 4
    (texts / "b.txt").write_text("another sentence\n")
    (tmp_path / "out" / "more" / "c.txt.parquet").write_bytes(b"PAR1")
    again = encode_corpus("hash:8", texts, tmp_path / "out")
    assert (again.num_files, again.num_rows, again.num_skipped) == (2, 8, 2)
    assert again.damaged == (str(tmp_path / "out" / "more" / "c.txt.parquet"),)
    assert pq.read_table(tmp_path / "out" / "b.txt.parquet")["text"].to_pylist() == [
        "another sentence"
    ]


def test_encode_command_encodes_damaged_vectors_again(texts, tmp_path, monkeypatch, capsys) -> None:
    """Whatever part of a file of vectors is zeros, lost or taken out, a line names it, and its bytes come back."""
    command = CommandLine(monkeypatch, capsys)
    arguments = ("encode-corpus", "hash:8", texts, "-o", tmp_path / "out")
    command(*arguments)
    whole, path = digests(tmp_path / "out"), tmp_path / "out" / "a.txt.parquet"
    data = path.read_bytes()
    size = len(data)
    damages = (
        bytes(size),
        data[: size // 2],
        data[:1000] + bytes(40) + data[1040:],
        data[:600] + data[700:],
        b"",
    )
    for damaged in damages:
        path.write_bytes(damaged)
        ran = command(*arguments)
        assert ran.code == 0
        assert f"{path}: was damaged, and does not count as encoded before\n" in ran.err
        assert "1 files, 120 sentences, 8 dimensions; 3 were there already" in ran.err
        assert digests(tmp_path / "out") == whole


def test_encode_corpus_survives_a_dead_process(texts, model, tmp_path, monkeypatch) -> None:
    """The file in work is encoded again, and all bits are those of an undisturbed call; three losses end it."""
    encode_corpus(model, texts, tmp_path / "whole")
    plain, losses = module.encode_blocks, iter([2, 1, 3])

    def dying(*arguments, **options):
        blocks = plain(*arguments, **options)
        for _ in range(next(losses, 100)):
            try:
                yield next(blocks)
            except StopIteration:
                return
        raise WorkerError("processes: a worker process died")

    monkeypatch.setattr(module, "encode_blocks", dying)
    assert encode_corpus(model, texts, tmp_path / "out").num_rows == 177
    assert digests(tmp_path / "out") == digests(tmp_path / "whole")
    losses = iter([0, 0, 0, 0])
    with pytest.raises(WorkerError):
        encode_corpus(model, texts, tmp_path / "never")
    assert digests(tmp_path / "never") == {}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a forked process")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_encode_corpus_continues_after_kill(texts, tmp_path, monkeypatch) -> None:
    """A process that is killed within its second file leaves the first; the next call removes the half-written one."""
    encode_corpus("hash:8", texts, tmp_path / "whole")
    encode = HashEncoder.encode_texts

    def slow(self, sentences, **options):
        if (tmp_path / "out" / "a.txt.parquet").exists():
            time.sleep(60)
        return encode(self, sentences, **options)

    process = os.fork()
    if process == 0:
        HashEncoder.encode_texts = slow
        try:
            encode_corpus("hash:8", texts, tmp_path / "out", workers=1)
        finally:
            os._exit(1)
    while not list(tmp_path.glob("out/.b.txt.parquet.*")):
        assert os.waitpid(process, os.WNOHANG) == (0, 0), "it ended before its second file"
        time.sleep(0.01)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    assert list(digests(tmp_path / "out")) == ["a.txt.parquet"]
    again = encode_corpus("hash:8", texts, tmp_path / "out")
    assert (again.num_skipped, again.num_files) == (1, 3)
    assert digests(tmp_path / "out") == digests(tmp_path / "whole")
    assert list((tmp_path / "out").rglob(".*.parquet.*")) == []


def test_encode_corpus_on_a_cluster_writes_the_same_bits(
    texts, model, tmp_path, monkeypatch
) -> None:
    """A task for each file, in any order; the cluster's machines load the model by its name."""
    encode_corpus(model, texts, tmp_path / "here")
    cluster = FakeCluster(monkeypatch)
    found = encode_corpus(model, texts, tmp_path / "there", address="head:6379", workers=2)
    assert (found.num_files, found.num_rows, cluster.gpus) == (4, 177, {0.0})
    assert digests(tmp_path / "there") == digests(tmp_path / "here")


def test_encode_corpus_uses_the_gpus_of_a_cluster(texts, model, tmp_path, monkeypatch) -> None:
    """A trained model gets a GPU for each task; a folder continues on the device that it was begun with."""
    used = []
    monkeypatch.setattr(SentenceModel, "use_device", lambda self, device: used.append(device.type))
    monkeypatch.setattr(
        "torch.cuda.device_count", lambda: 1
    )  # of the cluster's machines, where jobs run
    cluster = FakeCluster(monkeypatch, has_gpus=True)
    options = {"address": "head:6379", "workers": 1}
    encode_corpus(model, texts / "b.txt", tmp_path / "gpu", **options)
    assert (cluster.gpus, set(used)) == ({1.0}, {"cuda"})
    cluster.gpus.clear()
    with on_device("cpu"):
        encode_corpus(model, texts / "b.txt", tmp_path / "cpu", **options)
    encode_corpus(model, texts, tmp_path / "cpu", **options)
    encode_corpus("hash:8", texts, tmp_path / "hash", **options)
    assert cluster.gpus == {0.0}
    with (
        on_device("cpu"),
        pytest.raises(ArtifactError, match="holds vectors with device = 'cuda', not None"),
    ):
        encode_corpus(model, texts, tmp_path / "gpu", **options)
    cluster.has_gpus = False
    with pytest.raises(ConfigError, match="gpu: was begun on GPUs; the cluster has no GPU"):
        encode_corpus(model, texts, tmp_path / "gpu", **options)
    with on_device("cuda"), pytest.raises(ConfigError, match="device cuda: the cluster has no GPU"):
        encode_corpus(model, texts, tmp_path / "new", **options)


def test_encode_corpus_stops_at_its_time_and_continues(texts, tmp_path, monkeypatch) -> None:
    """Complete files are kept."""
    clock = iter(range(1000))
    monkeypatch.setattr(module.time, "monotonic", lambda: next(clock))
    stopped = encode_corpus("hash:8", texts, tmp_path / "out", deadline="4s")
    monkeypatch.undo()
    assert stopped.stopped == "encoding: the time of 4s is over"
    assert stopped.num_files + stopped.num_left == 4
    assert stopped.num_files in (1, 2, 3)
    rest = encode_corpus("hash:8", texts, tmp_path / "out")
    assert (rest.num_skipped, rest.num_files, rest.stopped) == (
        stopped.num_files,
        stopped.num_left,
        "",
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model": "hash:9"},
            "output .*out: holds vectors of the model hash:8, not of hash:9; name another folder",
        ),
        (
            {"keeps_text": False},
            "output .*out: holds vectors with has_text = True, not False; name another folder",
        ),
        ({"input": "none/*.txt"}, "input: none/.*: no file matches"),
        ({"deadline": "2020-01-01"}, "a deadline must be in the future; given"),
        (
            {"encoding": module.Encoding("int4")},
            "precision: must be float32, int8, ubinary; given 'int4'",
        ),
        (
            {"encoding": module.Encoding(bfloat16=True)},
            "bfloat16: must be used with a trained model; given hash:8",
        ),
        (
            {"column": "body"},
            "output .*out: holds vectors with column = '', not 'body'; name another folder",
        ),
    ],
)
def test_encode_corpus_refuses_in_one_line(texts, tmp_path, changes, message) -> None:
    """Nothing that is there is changed."""
    encode_corpus("hash:8", texts / "b.txt", tmp_path / "out")
    before = digests(tmp_path / "out")
    arguments = {"model": "hash:8", "input": texts, "output": tmp_path / "out", **changes}
    with pytest.raises((ConfigError, DataError, ArtifactError), match=message):
        encode_corpus(
            arguments.pop("model"), arguments.pop("input"), arguments.pop("output"), **arguments
        )
    assert digests(tmp_path / "out") == before


def test_encode_corpus_refuses_two_files_of_one_name(texts, tmp_path) -> None:
    """Two paths with the same names below them need two folders; the same file twice is one."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "b.txt").write_text("x\n")
    with pytest.raises(DataError, match="would both become b.txt"):
        encode_corpus("hash:8", [texts, other], tmp_path / "out")
    assert (
        encode_corpus("hash:8", [texts / "b.txt", f"{texts}/*.txt"], tmp_path / "out").num_files
        == 3
    )


def test_encode_corpus_replaces_no_file_of_another_folder(tmp_path) -> None:
    """Also of the same size and time; a text folder that was moved, or whose link names another one, goes on."""
    out, folder = tmp_path / "out", tmp_path / "january"
    for place, text in ((folder, "rain\n"), (tmp_path / "february", "snow\n")):
        place.mkdir()
        (place / "notes.txt").write_text(text)
        os.utime(place / "notes.txt", (1, 1))
    assert encode_corpus("hash:8", folder, out).num_files == 1
    refused = r"february/notes.txt: would replace /.*january/notes.txt, which is there too; .*remove /.*.parquet$"
    with pytest.raises(DataError, match=refused):
        encode_corpus("hash:8", tmp_path / "february", out)
    assert pq.read_table(out / "notes.txt.parquet")["text"].to_pylist() == ["rain"]
    folder.rename(tmp_path / "moved")
    assert encode_corpus("hash:8", tmp_path / "moved", out).num_skipped == 1
    with VectorFolder(out).writing("notes.txt", VectorFolder(out).format(), version="1"):
        pass  # as earlier versions wrote it, without a place
    assert encode_corpus("hash:8", tmp_path / "february", out).num_files == 1
    for place in ("moved", "february"):
        (tmp_path / "link").unlink(missing_ok=True)
        (tmp_path / "link").symlink_to(tmp_path / place)
        (tmp_path / place / "notes.txt").write_text(place)
        assert encode_corpus("hash:8", tmp_path / "link", tmp_path / "linked").num_files == 1


def test_encode_corpus_refuses_hidden_files(texts, tmp_path) -> None:
    """Their Parquet files would be hidden too, and no search would find them."""
    (texts / "b.txt").rename(texts / ".notes.txt")
    with pytest.raises(
        DataError,
        match=r"\.notes\.txt: must not begin with a dot, as no search finds it; rename it$",
    ):
        encode_corpus("hash:8", texts / ".notes.txt", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_encode_corpus_refuses_a_name_that_is_no_text(tmp_path) -> None:
    """A table of vectors cannot hold it."""
    folder = tmp_path / "texts"
    folder.mkdir()
    Path(os.fsdecode(os.fsencode(folder) + b"/a\xff.txt")).write_text("rain\n")
    with pytest.raises(
        DataError, match=r"^input '/.*a\\udcff\.txt': must be a name in UTF-8; rename the file$"
    ):
        encode_corpus("hash:8", folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_encode_corpus_reads_columns_and_sentences(tmp_path) -> None:
    """Tables and JSON lines by a column; running text by its sentences."""
    (tmp_path / "rows.csv").write_text('id,body\n1,"one, two"\n2,three\n')
    (tmp_path / "rows.jsonl").write_text('{"body": "one, two"}\n\n{"body": "three"}\n')
    (tmp_path / "story.txt").write_text("The rain fell all night. It was cold.\n" * 3)
    encode_corpus("hash:8", f"{tmp_path}/rows.*", tmp_path / "out", column="body")
    encode_corpus("hash:8", tmp_path / "story.txt", tmp_path / "split", splits_sentences=True)
    for name in ("rows.csv", "rows.jsonl"):
        assert pq.read_table(tmp_path / "out" / f"{name}.parquet")["text"].to_pylist() == [
            "one, two",
            "three",
        ]
    split = pq.read_table(tmp_path / "split" / "story.txt.parquet")["text"].to_pylist()
    assert split == ["The rain fell all night.", "It was cold."] * 3


def test_encode_corpus_reads_no_vectors_of_its_own_output(tmp_path, monkeypatch) -> None:
    """Inside the folder of tables, by any name of it, damaged or of a text that is gone; other Parquet files are text."""
    monkeypatch.chdir(tmp_path)
    Path("rows").mkdir()
    for name in ("a", "b"):
        Path(f"rows/{name}.csv").write_text(f"text\n{name}\n")
    pq.write_table(pa.table({"text": ["c"]}), "rows/c.parquet")
    Path("link").symlink_to("rows")
    assert encode_corpus("hash:8", "rows", "rows/out").num_files == 3
    for text, out in (("rows", "link/out"), (tmp_path / "rows", "rows/../rows/out")):
        done = encode_corpus("hash:8", text, out)
        assert (done.num_files, done.num_skipped) == (0, 3), (text, out)
    Path("rows/b.csv").unlink()
    Path("rows/out/a.csv.parquet").write_bytes(b"PAR1")
    done = encode_corpus("hash:8", "rows", "rows/out")
    assert (done.num_files, done.num_skipped) == (1, 1)
    assert VectorFolder("rows/out").names() == ["a.csv", "b.csv", "c.parquet"]
    for _ in range(2):  # beside the text, and above it
        encode_corpus("hash:8", "rows/*.[cp]*", "rows")
        encode_corpus("hash:8", "rows/*.csv", ".")
    assert sorted(path.name for path in Path("rows").glob("*.parquet")) == [
        "a.csv.parquet",
        "c.parquet",
        "c.parquet.parquet",
    ]
    assert [path.name for path in Path().glob("*.parquet")] == ["a.csv.parquet"]
    with pytest.raises(DataError, match=r"^input: must name at least one file; given none$"):
        encode_corpus("hash:8", "rows/out", "rows/out")


def test_encode_corpus_in_a_bucket(texts, tmp_path, monkeypatch, bucket) -> None:
    """Text and vectors in s3://: whole objects, no other files, and resumed by the ETag of the text."""
    monkeypatch.setenv("RAYSENT_CACHE", str(tmp_path / "cache"))
    encode_corpus("hash:8", texts, tmp_path / "out")
    for name in ("a.txt", "more/c.txt"):
        bucket.upload_file(str(texts / name), BUCKET, f"in/{name}")
    first = encode_corpus("hash:8", f"s3://{BUCKET}/in", f"s3://{BUCKET}/out")
    assert (first.num_files, first.num_rows) == (2, 127)
    found = [name for name in keys(bucket) if name.startswith("out/")]
    assert found == ["out/a.txt.parquet", "out/more/c.txt.parquet", "out/vectors.json"]
    bucket.upload_file(str(texts / "b.txt"), BUCKET, "in/more/c.txt")
    again = encode_corpus("hash:8", f"s3://{BUCKET}/in/", f"s3://{BUCKET}/out/")
    assert (again.num_skipped, again.num_files, again.num_rows) == (1, 1, 50)
    rows = [row for batch in VectorFolder(f"s3://{BUCKET}/out").batches() for row in batch.texts]
    assert rows == [
        *(texts / "a.txt").read_text().split("\n")[:-1],
        *(texts / "b.txt").read_text().split("\n")[:-1],
    ]
    with pytest.raises(ArtifactError, match="holds vectors of the model hash:8, not of hash:9"):
        encode_corpus("hash:9", f"s3://{BUCKET}/in", f"s3://{BUCKET}/out")
    bucket.put_object(Bucket=BUCKET, Key="rows/a.csv", Body=b"text\none\n")
    for expected in ((1, 0), (0, 1)):  # vectors among tables are no text
        done = encode_corpus("hash:8", f"s3://{BUCKET}/rows", f"s3://{BUCKET}/rows/out/")
        assert (done.num_files, done.num_skipped) == expected
    assert list((tmp_path / "cache" / "uploads").iterdir()) == []


def test_encode_corpus_command(texts, tmp_path, monkeypatch, capsys) -> None:
    """The command prints what was done; a limit is exit code 5."""
    command = CommandLine(monkeypatch, capsys)
    ran = command(
        "encode-corpus",
        "hash:8",
        texts,
        "-o",
        tmp_path / "out",
        "--set",
        "keeps_text=false",
        "--json",
    )
    assert json.loads(ran.out) | {
        "version": 1,
        "num_files": 4,
        "num_rows": 177,
        "width": 8,
    } == json.loads(ran.out)
    assert "text" not in pq.read_schema(tmp_path / "out" / "a.txt.parquet").names
    ran = command(
        "encode-corpus", "hash:8", texts, "-o", tmp_path / "out", "--set", "keeps_text=false"
    )
    assert "0 files, 0 sentences, 8 dimensions; 4 were there already" in ran.err
    ran = command("encode-corpus", "hash:8", texts, "-o", tmp_path / "late", "--time", "0s")
    assert ran.code == 5
    assert "the time of 0s is over; 4 files are left; run the command again to continue" in ran.err
    ran = command("index", "hash:8", texts, "-o", tmp_path / "index", "--set", "time=0s")
    assert ran.code == 5
    assert command("index", "hash:8", texts, "-o", tmp_path / "index").code == 0
