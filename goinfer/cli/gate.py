"""`goinfer gate`: the proofs. Filled in by goinfer.gates; this only parses and prints."""

import typer

from goinfer.cli.dashes import Group

gate = typer.Typer(
    name="gate", cls=Group, rich_markup_mode=None, help="Prove that a bundle computes what its reference computes."
)
