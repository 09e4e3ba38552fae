"""The generated world: deterministic, large enough, its splits disjoint, its facts the only way to an answer."""

from __future__ import annotations

import re

import pytest

from libra.workloads.environments.search_world import World, generate_world


@pytest.fixture(scope="module")
def world() -> World:
    return generate_world(0)


def test_equal_seeds_give_equal_worlds(world: World) -> None:
    assert generate_world(0) == world
    assert generate_world(1).facts != world.facts


def test_there_are_thousands_of_passages_of_one_short_sentence(world: World) -> None:
    passages = world.passages()
    assert 2_000 < len(passages) < 5_000
    assert len({passage.id for passage in passages}) == len(passages)
    assert all(re.fullmatch(r"The [a-z]+ of [A-Z][a-z]{3} is [A-Z][a-z]{3}\.", passage.text) for passage in passages)


def test_no_two_things_share_a_name(world: World) -> None:
    names = [name for kind in world.names.values() for name in kind]
    assert len(set(names)) == len(names)


def test_answers_follow_the_facts(world: World) -> None:
    for question in world.train + world.held_out:
        found = question.subject
        for relation in question.relations:
            found = world.facts[relation.name, found]
        assert world.answer(question) == found
        assert found not in question.text
    hops = {len(question.relations) for question in world.train}
    assert hops == {1, 2}


def test_who_is_asked_about_in_one_split_is_not_in_the_other(world: World) -> None:
    train, held_out = world.tasks("train"), world.tasks("held_out")
    assert len(train) > 5_000
    assert len(held_out) > 500
    assert len({task.id for task in train + held_out}) == len(train) + len(held_out)
    subjects = {question.subject for question in world.train}
    assert subjects.isdisjoint(question.subject for question in world.held_out)


def test_questions_read_well(world: World) -> None:
    texts = {question.id: question.text for question in world.train}
    person = next(question for question in world.train if len(question.relations) == 2)
    first, second = person.relations
    assert texts[person.id] == f"What is the {second.name} of the {first.name} of {person.subject}?"
