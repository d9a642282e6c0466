"""Parses command lines with az's own parser: its commands, options, allowed values and queries. Runs none of them.

Reads a JSON list of lists of arguments from standard input; prints a line for each that az refuses.
"""

import contextlib
import io
import json
import logging
import os
import sys
import tempfile

from azure.cli.core import get_default_cli


class Parsed(Exception):
    """The arguments are parsed, and nothing more is to happen."""


def refusal(cli, arguments: list[str]) -> str | None:
    """What az says about these arguments; None if it takes them."""
    invocation = cli.invocation_cls(
        cli_ctx=cli, parser_cls=cli.parser_cls, commands_loader_cls=cli.commands_loader_cls, help_cls=cli.help_cls
    )
    cli.invocation = invocation

    def parse(words: list[str]) -> None:
        type(invocation.parser).parse_args(invocation.parser, words)
        raise Parsed

    invocation.parser.parse_args = parse
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            invocation.execute(arguments)
    except Parsed:
        return None
    except SystemExit:
        pass
    return said.getvalue().strip().partition("\n")[0] or "refused"


def main() -> int:
    logging.disable(logging.WARNING)
    code = 0
    with tempfile.TemporaryDirectory() as home:
        os.environ.update(AZURE_CONFIG_DIR=home, AZURE_CORE_COLLECT_TELEMETRY="no", AZURE_CORE_NO_COLOR="yes")
        for arguments in json.load(sys.stdin):
            if text := refusal(get_default_cli(), arguments):
                print(f"az {' '.join(arguments)}: {text}")
                code = 1
    return code


if __name__ == "__main__":
    sys.exit(main())
