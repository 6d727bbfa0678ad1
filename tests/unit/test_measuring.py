

def test_goodput_is_known_while_one_burst_follows_the_other_without_a_gap():
    meter = GoodputMeter()
    for frame in range(600):
        meter.add(50_000, frame * 0.01)
    assert meter.read(600 * 0.01) == pytest.approx(40.0, rel=0.02)
