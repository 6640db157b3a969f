import io

from heliograph.cli.progress import LINE_INTERVAL, Bar, describe


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_has_a_rate_and_an_estimate() -> None:
    output, now = Terminal(), 0.0
    bar = Bar("ingesting segments", "MB", output, lambda: now)
    assert output.getvalue() == "\ringesting segments ..."  # something is seen at once
    now = 2.0
    bar.show(25_000_000, 100_000_000)
    bar.end()
    last = output.getvalue().rpartition("\r")[2]
    assert last.startswith("ingesting segments [#######---")
    assert last.rstrip().endswith(" 25%, 12.5 MB/s, 6 s left")
    assert last.endswith("\n")


def test_a_file_gets_a_line_now_and_then() -> None:
    output, now = io.StringIO(), 0.0
    bar = Bar("collecting tables", "tables", output, lambda: now)
    bar.show(1, 10)
    assert output.getvalue() == ""
    now = LINE_INTERVAL
    bar.show(5, 10)
    bar.show(6, 10)
    bar.end()
    assert output.getvalue() == "collecting tables:  50%, 0.5 tables/s, 10 s left\n"


def test_nothing_to_do_and_all_done() -> None:
    output = Terminal()
    bar = Bar("days", output=output)
    bar.show(0, 0)
    bar.end()
    assert "%" not in output.getvalue()
    assert describe(0, 4, 1.0, "days") == "  0%"
    assert describe(4, 4, 2.0, "days") == "100%, 2.0 days/s"
