"""`mainstem completion`: what a shell needs to complete commands, options and names."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

VARIABLE = "_MAINSTEM_COMPLETE"


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the completion script of a shell.

    \b
    bash   mainstem completion bash > ~/.local/share/bash-completion/completions/mainstem
    zsh    mainstem completion zsh > ~/.zfunc/_mainstem      (with ~/.zfunc in fpath)
    fish   mainstem completion fish > ~/.config/fish/completions/mainstem.fish

    The script completes commands, options and their values, and asks the node for names of topics and consumer groups.
    """
    from mainstem.cli.main import root

    kind = get_completion_class(shell)
    assert kind is not None, "click knows the shells that this command offers"
    click.echo(kind(root, {}, "mainstem", VARIABLE).source())
