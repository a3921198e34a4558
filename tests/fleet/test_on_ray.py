"""Fleets on real Ray, several nodes on this machine."""


def test_P2_a_fleet_serves_and_takes_updates_of_two_trainers_in_mid_stream(on_ray):
    assert on_ray("serve")["spanning"] > 0
