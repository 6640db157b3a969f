from typing import Any


def test_jobs_share_cores_and_plans_adapt(spark: Any) -> None:
    pool = spark.sparkContext._jsc.sc().getPoolForName("default").get()
    assert str(pool.schedulingMode()) == "FAIR"
    assert spark.conf.get("spark.sql.adaptive.enabled") == "true"
