"""The licence is carried along, as far as the folder says it."""

from pathlib import Path

import pytest

from coldframe.export.licence import UNKNOWN, Licence, read_licence

CARD = "---\nlanguage: en\nlicense: {}\ntags:\n- video\n---\n# Model\nlicense: mit\n"


@pytest.mark.parametrize(
    ("name", "non_commercial"),
    [("cc-by-nc-4.0", True), ("'cc-by-nc-sa-4.0'", True), ("mit", False), ("apache-2.0", False)],
)
def test_model_card_front_matter_is_read(tmp_path: Path, name: str, non_commercial: bool) -> None:
    (tmp_path / "README.md").write_text(CARD.format(name))
    assert read_licence(tmp_path) == Licence(name=name.strip("'"))
    assert read_licence(tmp_path).non_commercial is non_commercial


def test_licence_file_is_carried_whole(tmp_path: Path) -> None:
    text = "\nCreative Commons Attribution-NonCommercial 4.0 International\n\nBy exercising ...\n"
    (tmp_path / "LICENSE").write_text(text)
    licence = read_licence(tmp_path)
    assert licence.name == "Creative Commons Attribution-NonCommercial 4.0 International"
    assert licence.text == text
    assert licence.non_commercial


def test_card_names_and_file_tells(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(CARD.format("other"))
    (tmp_path / "LICENSE.txt").write_text("For non-commercial research only.")
    licence = read_licence(tmp_path)
    assert (licence.name, licence.non_commercial) == ("other", True)


@pytest.mark.parametrize("card", ["", "# Model\nlicense: mit\n", "---\ntags: x\n---\nlicense: mit\n"])
def test_no_word_of_a_licence_is_unknown(tmp_path: Path, card: str) -> None:
    (tmp_path / "README.md").write_text(card)
    assert read_licence(tmp_path) == Licence(name=UNKNOWN)
