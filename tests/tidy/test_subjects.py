"""A commit's subject fits a terminal's line of `git log` (docs/style.md, section 11)."""

import subprocess

import pytest

from project import ROOT

SUBJECT_LEN_MAX = 72


def new_subjects():
    """The subjects of commits that origin/main does not have; None without git, or without origin/main."""
    log = subprocess.run(
        ["git", "log", "--no-merges", "--format=%s", "origin/main..HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return log.stdout.splitlines() if log.returncode == 0 else None


def test_subjects_of_new_commits_are_short():
    subjects = new_subjects()
    if subjects is None:
        pytest.skip("there is no origin/main to compare with")
    long = [subject for subject in subjects if len(subject) > SUBJECT_LEN_MAX]
    assert not long, f"at most {SUBJECT_LEN_MAX} characters: git commit --amend, or git rebase -i"
