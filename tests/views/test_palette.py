"""The words of what tasks do, and the colours of everything that is drawn."""

import re

import pytest

from tfmagic.runs.doing import ENDS, PHASES, Doing
from tfmagic.supervisor.state import Phase
from tfmagic.views import palette, widget


def rgb(colour):
    return [int(colour[i : i + 2], 16) for i in (1, 3, 5)]


def luminance(colour):
    parts = [part / 255 for part in colour]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one, other):
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def mixed(colour, share, other):
    return [share * a + (1 - share) * b for a, b in zip(colour, other, strict=True)]


def test_every_phase_is_a_word_and_every_word_has_a_tone():
    assert {phase.value for phase in Phase} == set(PHASES) <= set(Doing)
    assert set(palette.OF_DOING) == set(Doing) >= set(ENDS)
    assert palette.tone_of("stalled") is palette.PURPLE
    assert palette.tone_of("of another version") is palette.GREY


def test_text_in_a_picture_has_the_contrast_that_wcag_asks_for():
    """The picture brings its own background, so the theme of the page does not matter."""
    inks = [palette.INK, *(tone.ink for tone in palette.TONES)]
    papers = [palette.PAPER, *(tone.tint for tone in palette.TONES)]
    assert min(contrast(rgb(ink), rgb(paper)) for ink in inks for paper in papers) >= 4.5


def test_text_in_a_picture_has_that_contrast_on_a_dark_page_too():
    dark = palette.dark_of()
    assert set(dark) == {
        palette.INK,
        palette.PAPER,
        palette.LINE,
        *(c for t in palette.TONES for c in (t.ink, t.tint)),
    }
    inks = [dark[palette.INK], *(dark[tone.ink] for tone in palette.TONES)]
    papers = [dark[palette.PAPER], *(dark[tone.tint] for tone in palette.TONES)]
    assert min(contrast(rgb(ink), rgb(paper)) for ink in inks for paper in papers) >= 4.5
    assert min(contrast(rgb(tone.mid), rgb(dark[palette.PAPER])) for tone in palette.TONES) >= 3


@pytest.mark.parametrize("tone", palette.TONES, ids=lambda tone: tone.name)
@pytest.mark.parametrize(("text", "page"), [("#212121", "#ffffff"), ("#e0e0e0", "#111111")])
def test_tones_can_be_seen_on_a_page_of_any_theme(tone, text, page):
    """Marks need a contrast of 3; the panel's text one of 4.5, also on the state's own background."""
    assert contrast(rgb(tone.mid), rgb(page)) >= 3
    share = int(re.search(rf"--tfm-{tone.name}: .* (\d+)%, var\(--tfm-fg\)\)", palette.style_sheet())[1])
    on_panel = mixed(rgb(tone.mid), share / 100, rgb(text))
    assert contrast(on_panel, mixed(on_panel, 0.13, rgb(page))) >= 4.5


@pytest.mark.parametrize(("text", "page"), [("#212121", "#ffffff"), ("#e0e0e0", "#111111")])
def test_what_a_program_prints_in_colours_can_be_read_on_a_page_of_any_theme(text, page):
    """Also as a line of stderr, whose background is tinted, and on a surface with a colour of its own."""
    log = mixed(rgb(text), 0.04, rgb(page))
    stderr = mixed(mixed(rgb(palette.RED.mid), 0.7, rgb(text)), 0.09, log)
    for number, colour in enumerate(palette.TERMINAL):
        sheet = palette.style_sheet()
        share = int(re.search(rf"--tfm-a{number}: .* (\d+)%, var\(--tfm-fg\)\)", sheet)[1])
        ink = mixed(rgb(colour), share / 100, rgb(text))
        assert min(contrast(ink, log), contrast(ink, stderr)) >= 4.5, colour
        alpha = re.search(rf"--tfm-b{number}: {colour}(\w\w);", sheet)[1]
        surface = mixed(rgb(colour), int(alpha, 16) / 255, log)
        assert contrast(rgb(text), surface) >= 4.5, colour
        assert f"{colour} {share}%, currentcolor" in palette.terminal_css(number, is_text=True)


def test_the_style_sheet_of_the_panel_defines_every_variable_that_it_uses():
    css, script = widget.PanelWidget._css, widget.PanelWidget._esm
    used = set(re.findall(r"var\((--tfm-[a-z0-9-]+)", f"{css}{script}")) - {"--tfm-a"}  # with a number
    assert used <= set(re.findall(r"(--tfm-[a-z0-9-]+):", css)) | {"--tfm-name"}  # set by the script
