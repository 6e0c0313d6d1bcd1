"""How a saved answer keeps the models that it needs: copies in its folder, or names that every machine finds.

    members/NAME/    a trained model; or the files of a pretrained encoder, linked to where they came from

A trained model is copied. A pretrained encoder that came from a folder or a package is copied with the files that its
vectors depend on, as links to the same files where the disk allows; several members that read one encoder share the
copy. An encoder of the hub is kept by its name and commit, or copied too. What a name alone determines needs nothing.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from raysent.evaluation.members import Member, model_key
from raysent.evaluation.records import Record, record_folder, write_record
from raysent.models import SentenceModel
from raysent.models import load as load_model
from raysent.models.known import find_encoder
from raysent.models.pretrained import folder_key, model_files
from raysent.models.schemes import split_path
from raysent.storage import (
    address_of,
    read_json,
    remove_folder,
    safe_name,
    storage_errors,
    write_json,
)
from raysent.storage.layout import CARD_FILE, EVALUATION_FOLDER, RUN_FILE

# Encoders that are read from the files of a folder as they are.
_BY_FILES = ("st:", "hf:", "middle:")
_MEGABYTE = 1_000_000


def kept(member: Member, members_folder: Path, *, copies_hub: bool = False) -> Member:
    """Return a member as a saved answer names it, with a copy of its model where it needs one.

    Args:
        member: The member.
        members_folder: The folder of the copies.
        copies_hub: Whether encoders of the hub are copied too.

    Raises:
        RaysentError: If the model cannot be read, or the folder cannot be written.
    """
    scheme, path = split_path(member.path)
    if path is None or not member.path.startswith(_BY_FILES):
        return copied(member, members_folder / member.folder)
    files = find_encoder(path, where=member.path)
    if files.is_of_hub and not copies_hub:
        return replace(member, path=f"{scheme}{files.name}@{files.revision}")
    folder = members_folder / safe_name(Path(files.name).name or files.folder.name)
    _copy_files(files.folder, folder, below=members_folder)
    return replace(member, path=f"{scheme}{folder}")


def copied(member: Member, folder: Path) -> Member:
    """Return a member with its model in a folder, as raysent saves models; itself where it cannot be saved so."""
    if split_path(member.path)[1] is None:
        return member
    model = load_model(member.path)
    if not isinstance(model, SentenceModel):
        return member
    model.save(folder)
    # Of a training: what it was trained on.
    settings = Path(member.path) / RUN_FILE
    if settings.is_file():
        write_json(folder / RUN_FILE, read_json(settings))
    return replace(member, path=str(folder), key=model_key(str(folder)))


def _copy_files(source: Path, folder: Path, *, below: Path) -> None:
    """Copy what the vectors of an encoder depend on, and its card, as links where the disk allows."""
    if folder.is_dir() and folder_key(folder) == folder_key(source):
        return
    remove_folder(folder, below=below.parent)
    files = [*model_files(source)]
    if (source / CARD_FILE).is_file():
        files.append(source / CARD_FILE)
    with storage_errors(folder):
        for path in files:
            target = folder / path.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(path.resolve(), target)
            except OSError:
                # The files are on another disk, or on one without links.
                shutil.copyfile(path, target)


def keep_record(folder: Path, member: Member, record: Record) -> None:
    """Write a member's record of a task into the folder of an ensemble, where it is read when it predicts."""
    write_record(record_folder(folder / EVALUATION_FOLDER / member.folder, record.protocol), record)


def kept_lines(members: Iterable[Member], folder: Path) -> tuple[str, ...]:
    """Return a line for each pretrained encoder of an answer: how it is kept, and its size.

    Args:
        members: The members as the answer names them.
        folder: The answer's folder.
    """
    paths = [split_path(member.path)[1] for member in members if member.path.startswith(_BY_FILES)]
    return tuple(_line_of(path, folder) for path in dict.fromkeys(paths) if path is not None)


def _line_of(path: str, folder: Path) -> str:
    files = model_files(find_encoder(path).folder)
    num_bytes = sum(file.stat().st_size for file in files)
    size = f"{max(1, round(num_bytes / _MEGABYTE)):,} MB"
    if Path(path).is_relative_to(folder):
        if all(file.stat().st_nlink > 1 for file in files):
            size += ", linked to the files that it came from"
        return f"{Path(path).name} is copied into {address_of(folder)} ({size})"
    return (
        f"{path} is kept by its name and commit: a machine that lacks it downloads {size}; "
        "--set evaluation.copy_pretrained=true copies it"
    )
