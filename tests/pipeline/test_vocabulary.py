from heliograph.pipeline.vocabulary import OUTCOMES, UNFINISHED, describe_unfinished


def test_what_has_no_final_outcome_is_counted() -> None:
    assert set(UNFINISHED) < set(OUTCOMES)
    assert describe_unfinished(dict.fromkeys(OUTCOMES, 500)) == (
        "; 1,500 of them have no final outcome yet"
    )
    assert describe_unfinished({"accepted": 7}) == ""
