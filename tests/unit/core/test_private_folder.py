"""Folders that nobody else may enter: made so, refused when somebody else could have filled them, short enough for
Ray."""

from __future__ import annotations

import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from brorl_graders.base import private_folder as module
from brorl_graders.base.private_folder import file_system, make_private, private_folder, scratch_home, scratch_root
from ray._private.utils import validate_socket_filepath

from nemo_brorl.core.errors import ResourceError
from nemo_brorl.core.private_folder import kernel_caches

STRANGER = 65534
CACHES = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "VLLM_CACHE_ROOT")


def mode(folder: Path) -> int:
    return stat.S_IMODE(folder.stat().st_mode)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A TMPDIR that is short enough, and no settings of caches."""
    folder = Path(tempfile.mkdtemp(prefix="b", dir="/tmp"))
    monkeypatch.setenv("TMPDIR", str(folder))
    for name in (*CACHES, "BRORL_CACHE"):
        monkeypatch.delenv(name, raising=False)
    yield folder
    shutil.rmtree(folder)


def test_a_folder_is_made_for_this_user_alone_whatever_the_mask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        made = make_private(tmp_path / "mine", "TMPDIR")
    finally:
        os.umask(before)
    assert (made, mode(made)) == (tmp_path / "mine", 0o700)
    assert make_private(made, "TMPDIR") == made, "the second time it is there"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_a_folder_that_somebody_else_made_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir(mode=0o700)
    os.chown(folder, STRANGER, STRANGER)
    with pytest.raises(ResourceError, match=r"theirs belongs to user 65534.* remove it, or set BRORL_CACHE to"):
        make_private(folder, "BRORL_CACHE")


@pytest.mark.parametrize("others", [0o020, 0o002, 0o010, 0o001, 0o040, 0o004])
def test_a_folder_that_others_may_use_in_any_way_is_refused(tmp_path: Path, others: int) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o700 | others)
    with pytest.raises(ResourceError, match=rf"may be entered by others \(mode 07{others:02o}, not 0700\)"):
        make_private(folder, "TMPDIR")


def test_a_link_is_refused_even_to_a_private_folder(tmp_path: Path) -> None:
    make_private(tmp_path / "private", "TMPDIR")
    (tmp_path / "link").symlink_to(tmp_path / "private")
    (tmp_path / "to_nothing").symlink_to(tmp_path / "nothing")
    for name in ("link", "to_nothing"):
        with pytest.raises(ResourceError, match=f"{name} is a symbolic link"):
            make_private(tmp_path / name, "TMPDIR")
    assert not (tmp_path / "nothing").exists(), "and nothing is made where it points"


def test_a_file_in_the_place_of_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ResourceError, match="file is no folder"):
        make_private(tmp_path / "file", "TMPDIR")
    with pytest.raises(ResourceError, match="below cannot be made: Not a directory: set TMPDIR"):
        make_private(tmp_path / "file" / "below", "TMPDIR")


def test_a_folder_that_everybody_may_move_away_is_refused_unless_the_parent_is_sticky(tmp_path: Path) -> None:
    parent = tmp_path / "everybodys"
    parent.mkdir()
    parent.chmod(0o1777)
    assert make_private(parent / "mine", "TMPDIR") == parent / "mine"
    parent.chmod(0o777)
    with pytest.raises(ResourceError, match="everybodys, where everybody may put another one in its place"):
        make_private(parent / "mine", "TMPDIR")


def test_without_tmpdir_the_root_is_tmp(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in (None, ""):
        monkeypatch.delenv("TMPDIR", raising=False) if value is None else monkeypatch.setenv("TMPDIR", value)
        assert scratch_root() == Path("/tmp")


def test_all_private_folders_lie_in_tmpdir_where_it_is_short(short: Path) -> None:
    own = short / f"brorl-{os.getuid()}"
    assert (scratch_root(), private_folder(), scratch_home()) == (short, own, own / "home")
    assert kernel_caches() == dict(
        zip(CACHES, (str(own / "cache" / name) for name in ("triton", "inductor", "vllm")), strict=True)
    )
    assert [mode(folder) for folder in (own, own / "home", own / "cache")] == [0o700] * 3


def test_a_tmpdir_too_long_for_rays_sockets_is_left_and_the_log_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logging.getLogger("brorl_graders"), "propagate", True)
    long = tmp_path / ("x" * 60)
    long.mkdir()
    monkeypatch.setenv("TMPDIR", str(long))
    assert [scratch_root(), scratch_root()] == [Path("/tmp")] * 2
    [said] = [record.getMessage() for record in caplog.records if record.name == module.__name__]
    assert said.startswith(f"TMPDIR={long} is longer than the ")
    assert said.endswith("bytes that paths of Ray's sockets leave for it: private folders are made in /tmp")


def test_a_tmpdir_with_letters_that_ray_cannot_write_is_left_and_one_with_blanks_is_taken(
    short: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logging.getLogger("brorl_graders"), "propagate", True)
    for name, root in (("ä", Path("/tmp")), ("a b", short / "a b")):
        (short / name).mkdir()
        monkeypatch.setenv("TMPDIR", str(short / name))
        assert scratch_root() == root
    assert f"TMPDIR={short / 'ä'} has letters beyond ASCII" in caplog.text


@pytest.mark.parametrize("value", ["/not/on/this/node", "relative", "/etc/passwd"])
def test_a_tmpdir_that_is_not_on_this_node_is_left_and_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, value: str
) -> None:
    monkeypatch.setattr(logging.getLogger("brorl_graders"), "propagate", True)
    monkeypatch.setenv("TMPDIR", value)
    module._root_of.cache_clear()
    assert scratch_root() == Path("/tmp")
    assert f"TMPDIR={value} is no folder that can be written to here" in caplog.text


def test_a_tmpdir_that_other_machines_share_is_left_and_the_log_says_so(
    short: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logging.getLogger("brorl_graders"), "propagate", True)
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/sda1 / ext4 rw 0 0\nserver:/scratch {short} nfs4 rw 0 0\n")
    monkeypatch.setattr(module, "MOUNTS", mounts)
    assert scratch_root() == Path("/tmp")
    assert f"TMPDIR={short} is on nfs4, not on a disk of this machine: private folders are made in /tmp" in caplog.text


def test_a_folder_is_on_the_nearest_file_system_above_it() -> None:
    lines = (
        "/dev/sda1 / ext4 rw 0 0",
        "x /shared nfs rw 0 0",
        "tmpfs /shared/my\\040own tmpfs rw 0 0",
        "y / overlay rw 0 0",
    )
    found = [file_system(Path(path), "\n".join(lines)) for path in ("/shared/me", "/shared/my own/a", "/shared2", "/")]
    assert found == ["nfs", "tmpfs", "overlay", "overlay"]
    assert file_system(Path("/shared"), "") == ""


def test_the_longest_tmpdir_that_is_taken_is_the_longest_that_ray_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the longest names of Ray's folder and of a session."""
    below = f"brorl-{os.getuid()}/0123456789/session_2026-11-23_01-00-00_123456_4194304/sockets/plasma_store"
    base = Path(tempfile.mkdtemp(prefix="b", dir="/tmp"))
    taken = []
    for length in range(1, 30):
        folder = base / ("x" * length)
        folder.mkdir()
        monkeypatch.setenv("TMPDIR", str(folder))
        is_taken = scratch_root() == folder
        taken.append(is_taken)
        try:
            validate_socket_filepath(str(folder / below))
        except OSError:
            assert not is_taken, folder
        else:
            assert is_taken, folder
    shutil.rmtree(base)
    assert {True, False} == set(taken)


def test_caches_that_the_environment_names_stay_and_nothing_is_made_for_them(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/somewhere")
    assert kernel_caches(["TORCHINDUCTOR_CACHE_DIR"]) == {}
    assert list(short.iterdir()) == []
    assert set(kernel_caches()) == {"TRITON_CACHE_DIR", "VLLM_CACHE_ROOT"}


def test_brorl_cache_is_looked_at_as_our_own_folder_is(
    short: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRORL_CACHE", str(tmp_path / "deep" / "cache"))
    assert kernel_caches()["TRITON_CACHE_DIR"] == str(tmp_path / "deep" / "cache" / "triton")
    assert mode(tmp_path / "deep" / "cache") == 0o700
    assert list(short.iterdir()) == [], "Ray's folder has nothing to do with it"
    (tmp_path / "deep" / "cache").chmod(0o770)
    with pytest.raises(ResourceError, match=r"mode 0770, not 0700.*set BRORL_CACHE"):
        kernel_caches()
