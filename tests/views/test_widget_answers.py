"""What a page gets from a widget after the end of its cell."""

from tfmagic.views.widget import WidgetDisplay


class Sent(WidgetDisplay):
    """Keeps what it sends."""

    def __init__(self):
        super().__init__()
        self.sent = []

    def send(self, message):
        self.sent.append(message)


def test_a_view_that_has_asked_several_times_gets_the_form_once():
    display = Sent()
    display.end({"kind": "form"})
    for view in (0.25, 0.25, 0.75, 0.25, 0.75):
        display._on_message(None, {"kind": "hello", "page": 0.5, "view": view}, None)
    assert len(display.sent) == 2, "each of the two views"


def test_a_view_whose_form_was_lost_gets_it_again(monkeypatch):
    monkeypatch.setattr("tfmagic.views.widget._AT_ONCE_S", 0.0)
    display = Sent()
    display.end({"kind": "form"})
    for _ in range(2):
        display._on_message(None, {"kind": "hello", "view": 0.25}, None)
    assert len(display.sent) == 2
