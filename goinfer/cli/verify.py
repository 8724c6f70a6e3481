"""`goinfer verify`: is every byte of a bundle what was written."""

import typer

from goinfer.cli.options import Bundle, Json, print_json, size


def verify(model: Bundle, json: Json = False) -> None:
    """Check a whole bundle; exit code 1 with the reasons when anything is wrong."""
    from goinfer.bundle_format.verify import verify as check

    report = check(model)
    if json:
        print_json(report.as_dict())
    elif report.ok:
        print(f"{model}: ok, {size(report.file_size)} in {len(report.sections)} sections")
    else:
        for problem in report.problems:
            typer.echo(f"goinfer: {problem}", err=True)
    if not report.ok:
        raise typer.Exit(1)
