"""The end of a log, of lines that may have any length."""

from clotho.web.logs import Tail


def test_last_lines_are_kept() -> None:
    tail = Tail(most=2)
    for piece in (b"one\ntw", b"o\nthree", b"\n", b"fo"):
        tail.push(piece)
    assert tail.lines() == ["two", "three", "fo"]


def test_line_of_ten_megabytes_is_cut_while_it_arrives() -> None:
    tail = Tail(longest=8)
    for _ in range(10):
        tail.push(b"x" * 1_000_000)
    tail.push(b"\nafter\n")
    assert tail.lines() == ["xxxxxxxx … 9,999,992 more bytes", "after"]


def test_bytes_that_are_no_text_are_replaced() -> None:
    tail = Tail()
    tail.push(b"\xff\xfe\n")
    assert tail.lines() == ["��"]
