"""Contents of `--help`: every key of a command, and what can be chosen for its groups."""

import pytest

from embodied.cli.compose import compose_config, groups, show_help


@pytest.mark.parametrize("command", ["train", "eval", "serve", "play", "tasks"])
def test_every_key_is_listed_and_no_group_that_cannot_be_chosen(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert show_help(["--help"], "", command)
    shown = capsys.readouterr().out
    config = compose_config(command, [])
    for key in config:
        assert f"  {key}:" in shown, key
    chosen = shown.partition("Groups, and what can be chosen for each:\n")[2].partition("\n\n")[0].splitlines()
    for line in chosen:
        group, first = line.split()[0], line.split()[1].rstrip(",")
        compose_config(command, [f"{group}={first}"])
        assert groups()[group]


def test_other_words_choose_whose_keys_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert show_help(["experiment=vla_flow", "--help"], "", "train")
    lines = capsys.readouterr().out.splitlines()
    for line in ("algo.granularity: action", "policy.critic_hidden: [128, 128]", "warm_start.clone.word_dropout: 0.15"):
        assert f"  {line}" in lines
    assert not any("clock" in line for line in lines)
