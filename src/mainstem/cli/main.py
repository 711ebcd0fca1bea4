"""The entry point: the tree of commands, and how every error ends.

Exit codes: 0 done, 1 the command failed, 2 wrong usage or configuration, 3 disk 1 of the node failed. An error is one
line on stderr, never a traceback.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

from mainstem import __version__
from mainstem.cli.errors import CommandLineError
from mainstem.cli.lazy_group import LazyCommand, LazyGroup
from mainstem.cli.parameters.profiles import root_option
from mainstem.errors import ConfigError, MainstemError

COMMANDS = {
    "serve": LazyCommand("mainstem.cli.serve", "Run a node."),
    "topic": LazyCommand("mainstem.cli.topic", "Create, look at and change topics."),
    "produce": LazyCommand("mainstem.cli.produce", "Send lines, files or JSON lines to a topic."),
    "consume": LazyCommand("mainstem.cli.consume", "Read the messages of a topic."),
    "group": LazyCommand("mainstem.cli.group", "Look at consumer groups and move their offsets."),
    "split": LazyCommand("mainstem.cli.split", "Run the Spark splitter and see how far it is."),
    "store": LazyCommand("mainstem.cli.store", "Look after the files of the queue store."),
    "bench": LazyCommand("mainstem.cli.bench", "Put load on a node and measure it."),
    "cluster": LazyCommand("mainstem.cli.cluster", "Look at the cluster and move its leaders."),
    "txn": LazyCommand("mainstem.cli.txn", "Look at transactions, and abort those that hang."),
    "user": LazyCommand("mainstem.cli.user", "Give users passwords, and take them away."),
    "token": LazyCommand("mainstem.cli.token", "Let others in for a while without a password of yours."),
    "acl": LazyCommand("mainstem.cli.acl", "Say who may do what, and see why."),
    "audit": LazyCommand("mainstem.cli.audit", "See who did what."),
    "quota": LazyCommand("mainstem.cli.quota", "Say how much clients may take per second."),
    "config": LazyCommand("mainstem.cli.config", "Look at and change configs of what is no topic."),
    "tenant": LazyCommand("mainstem.cli.tenant", "Share a cluster between tenants."),
    "cert": LazyCommand("mainstem.cli.cert", "Make, renew, revoke and show certificates."),
    "profile": LazyCommand("mainstem.cli.profile", "Name clusters, and how clients are let in there."),
    "dev": LazyCommand("mainstem.cli.dev", "Run a cluster on this machine."),
    "doctor": LazyCommand("mainstem.cli.doctor", "Check what this machine has and lacks."),
    "top": LazyCommand("mainstem.cli.top", "Watch rates, lags and disks of a cluster."),
    "completion": LazyCommand("mainstem.cli.completion", "Print the completion script of a shell."),
    "man": LazyCommand("mainstem.cli.man", "Print the manual page of a command."),
}


root = LazyGroup(
    name="mainstem",
    help="A distributed message queue that Kafka clients use unchanged.",
    commands_by_name=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
click.version_option(__version__, prog_name="mainstem", message="%(prog)s %(version)s")(root)
root_option(root)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit."""
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    try:
        outcome = root.main(args=arguments, prog_name="mainstem", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Exit as leave:
        return leave.exit_code
    except click.Abort:
        click.echo("stopped", err=True)
        return 1
    except click.ClickException as error:
        error.show()
        return 2
    except ConfigError as error:
        return _failed(error, 2)
    except BrokenPipeError:
        # The reader of our output left (as `head` does). Python would complain again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except UnicodeEncodeError as error:
        # Bytes of an argument that are not UTF-8 reach us as surrogates, which nothing can be asked for with.
        return _failed(ValueError(f"an argument is not UTF-8: {error.object!r}"), 2)
    except CommandLineError as error:
        return _failed(error, error.exit_code)
    except (MainstemError, OSError) as error:
        return _failed(error, 1)
    return outcome if isinstance(outcome, int) else 0


def _failed(error: Exception, code: int) -> int:
    click.echo(f"mainstem: {error}", err=True)
    return code


if __name__ == "__main__":
    main()
