"""Notes in a figure keep clear of each other and of points."""

from hypothesis import given
from hypothesis import strategies as st

from skytune.report.placing import DOT, Box, Note, place

AREA = Box(0, 0, 400, 200)
NOTES = st.lists(
    st.builds(Note, st.tuples(st.floats(0, 400), st.floats(0, 200)), st.floats(5, 80), st.floats(8, 14)), max_size=12
)


@given(NOTES)
def test_no_note_lies_on_another_or_far_outside(notes: list[Note]) -> None:
    corners = place(notes, AREA, [note.point for note in notes], [])
    boxes = [
        Box(corner[0], corner[1], corner[0] + note.width, corner[1] + note.height)
        for note, corner in zip(notes, corners, strict=True)
        if corner is not None
    ]
    assert len(corners) == len(notes)
    assert not any(box.meets(other) for i, box in enumerate(boxes) for other in boxes[:i])
    assert all(box.left >= 0 and box.right <= 400 and box.bottom >= 0 for box in boxes)


def test_a_note_gets_out_of_the_way_of_points_and_lines() -> None:
    note = Note((100.0, 100.0), 30, 10)
    (free,) = place([note], AREA, [note.point], [])
    assert free is not None and free[0] > 100 and free[1] > 100, "right and above, where nothing is"
    (left,) = place([note], AREA, [note.point, (120.0, 108.0)], [])
    assert left is not None and not Box(*left, left[0] + 30, left[1] + 10).holds((120.0, 108.0), DOT)
    (below,) = place([note], AREA, [note.point], [[(0.0, 107.0), (400.0, 107.0)]])
    assert below is not None and below[1] + 10 < 107


def test_what_finds_no_room_is_left_out() -> None:
    assert place([Note((200.0, 100.0), 500, 10)], AREA, [], []) == [None]
    crowd = [Note((200.0, 100.0), 60, 12)] * 40
    assert None in place(crowd, AREA, [], [])
