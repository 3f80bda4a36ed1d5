"""Results as tables and pages."""

import json

import pytest

import sluice


@pytest.fixture(scope="module")
def found(demo):
    return demo.evaluate(sluice.demo_text(), sluice.Plan.uniform("keys", tau=0.5), max_windows=1)


@pytest.fixture(scope="module")
def profile(demo):
    return demo.analyze(sluice.demo_text(), taus=[0.3, 0.5], context=128, max_windows=1)


def test_rows_make_tables_of_pandas(found, profile):
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(found.rows())
    assert list(table["plan"]) == ["dense", "plan 1"]
    assert table["kl"][1] == found["plans"][0]["kl"]["value"]
    assert table["kl_stderr"][1] == found["plans"][0]["kl"]["standard_error"]
    table = pandas.DataFrame(profile.rows())
    assert set(table["tau"]) == {0.3, 0.5} and set(table["layer"]) == set(range(12))


def test_results_are_those_of_the_program(found, profile):
    results = json.loads(found.results_json)
    assert results["command"] == "eval"
    assert results["runs"][0]["metrics"]["kl_mean"] == found["plans"][0]["kl"]["value"]
    assert profile["command"] == "analyze" and profile == json.loads(profile.results_json)


def test_a_report_is_one_page(found, profile, tmp_path):
    page = found.report(tmp_path / "one.html")
    assert page.read_text().lower().startswith("<!doctype html>")
    (tmp_path / "eval.json").write_text(found.results_json)
    both = sluice.report(profile, tmp_path / "eval.json", path=tmp_path / "both.html").read_text()
    assert "sluice::analyze()" in both and "sluice::evaluate()" in both


def test_a_notebook_shows_the_page(found):
    shown = found._repr_html_()
    assert shown.startswith("<iframe srcdoc=") and shown.count("<") == 2


def test_what_is_no_results_is_refused(tmp_path):
    for results in ([], [tmp_path / "nowhere.json"], [sluice.demo_model() / "config.json"]):
        with pytest.raises(sluice.Error) as caught:
            sluice.report(*results, path=tmp_path / "page.html")
        assert caught.value.hint
