"""Search-R1 with its real server: episodes, the reward's source, and demonstrations replayed text by text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from libra.core.errors import ConfigError
from libra.workloads.environments.base import EnvironmentContext, Task
from libra.workloads.environments.data_folder import FileEntry, Manifest, write_manifest
from libra.workloads.environments.search_r1 import INSTRUCTIONS, MAX_TURNS, SearchR1, serving
from libra.workloads.search_r1 import WORKLOAD
from tests.unit.workloads.environments.episodes import ends_cut, play, turns

TASK = Task("t", "What is the firm of Kitu?", {"answers": ["Bano", "Zela"]})


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EnvironmentContext]:
    pytest.importorskip("bm25s", reason="passages are found by bm25s")
    with serving(EnvironmentContext(tmp_path_factory.mktemp("work"))) as context:
        yield context


def offline(tmp_path: Path, **given: object) -> SearchR1:
    """An environment whose server is not there."""
    return SearchR1(EnvironmentContext(tmp_path, search_url="http://127.0.0.1:9", **given))  # type: ignore[arg-type]


def test_demonstrations_are_what_real_episodes_return(context: EnvironmentContext) -> None:
    environment = SearchR1(context)
    tasks = {task.prompt: task for task in environment.tasks("train")}
    searches = 0
    for demonstration in islice(environment.demonstrations(7), 120):
        seen, reward = play(environment, tasks[demonstration.prompt], *turns(demonstration))
        returned = [each for each in seen if each is not None]
        assert [each.text for each in returned] == [
            segment.text for segment in demonstration.segments if not segment.by_policy
        ]
        assert {each.status for each in returned} <= {"ok"}
        assert seen[-1] is None and len(seen) == len(returned) + 1 <= MAX_TURNS
        assert (reward == 1.0) is demonstration.is_right
        searches += len(returned)
    assert searches > 100


def test_demonstrations_are_deterministic_and_of_the_wanted_share(context: EnvironmentContext) -> None:
    first = list(islice(SearchR1(context).demonstrations(3), 2_000))
    assert first == list(islice(SearchR1(context).demonstrations(3), 2_000))
    assert first != list(islice(SearchR1(context).demonstrations(4), 2_000))
    assert 0.40 < sum(each.is_right for each in first) / 2_000 < 0.52
    held_out = {task.prompt for task in SearchR1(context).tasks("held_out")}
    assert held_out.isdisjoint(each.prompt for each in first)
    assert max(sum(len(s.text) for s in each.segments) for each in first) < 300
    assert all(each.is_right for each in islice(SearchR1(context, right_share=1.0).demonstrations(3), 300))
    few = [each.is_right for each in islice(SearchR1(context, right_share=0.0).demonstrations(3), 1_000)]
    assert sum(few) / 1_000 < 0.05


def test_both_hops_and_all_mistakes_are_shown(context: EnvironmentContext) -> None:
    some = list(islice(SearchR1(context).demonstrations(0), 500))
    assert {len(turns(each)) for each in some} == {1, 2, 3}
    wrong = [each for each in some if not each.is_right]
    assert any(len(turns(each)) == 1 for each in wrong)  # a guess
    assert any(
        turns(each)[0].split()[0].removeprefix("<search>") not in each.prompt for each in wrong
    )  # other relation


def test_another_seed_is_another_world(context: EnvironmentContext) -> None:
    assert SearchR1(replace(context, seed=1)).tasks("train") != SearchR1(context).tasks("train")


@pytest.mark.parametrize(
    ("completions", "reward"),
    [
        (["<answer>Bano</answer>"], 1.0),
        (["<answer> the zela. </answer>"], 1.0),
        (["<answer>Rado</answer>"], 0.0),
        (["<answer>Bano</answer> no, <answer>Rado</answer>"], 0.0),
        (["<answer>Rado</answer> no, <answer>Bano</answer>"], 1.0),
        (["Bano"], 0.0),
        (["<answer>Bano"], 0.0),
        (["<search>Bano</search>"], 0.0),
        (["I say <answer>Bano</answer> but <search>Bano</search>", "<answer>Rado</answer>"], 0.0),
        (["I say <answer>Bano</answer> but <search>Bano</search>", "nothing"], 1.0),
        ([], 0.0),
    ],
)
def test_the_reward_reads_the_last_answer_of_the_policy(completions: list[str], reward: float, tmp_path: Path) -> None:
    assert play(offline(tmp_path), TASK, *completions)[1] == reward


def test_a_call_without_a_turn_left_is_cut(tmp_path: Path) -> None:
    calls = ["<search>Kitu</search>"] * (MAX_TURNS - 1)
    assert ends_cut(offline(tmp_path), TASK, *calls, calls[0])
    assert ends_cut(offline(tmp_path), TASK, *calls, "I am done")
    assert not ends_cut(offline(tmp_path), TASK, *calls, "<answer>Bano</answer>")
    assert not ends_cut(offline(tmp_path), TASK, "<answer>Bano</answer>")


def test_an_answer_in_the_prompt_or_in_a_return_earns_nothing(tmp_path: Path) -> None:
    pytest.importorskip("bm25s", reason="passages are found by bm25s")
    data = tmp_path / "data"
    prepared(data, corpus='{"id": "1", "text": "firm Kitu <answer>Bano</answer>"}\n')
    (tmp_path / "work").mkdir()
    with serving(EnvironmentContext(tmp_path / "work", data=data)) as context:
        environment = SearchR1(context)
        task = environment.tasks("train")[0]
        assert "<answer>" in task.prompt
        seen, reward = play(environment, task, "<search>firm Kitu</search>", "<answer>Rado</answer>")
        assert seen[0] is not None and "<answer>Bano</answer>" in seen[0].text
        assert reward == 0.0
        assert play(environment, task, "<search>firm Kitu</search>", "I am done")[1] == 0.0


def test_a_turn_without_a_call_is_told_so_and_the_last_turn_ends_it(tmp_path: Path) -> None:
    seen, _ = play(offline(tmp_path), TASK, "hm", "<search> </search>", "</answer>", "<search>firm Kitu</search>")
    assert [each and (each.text, each.status) for each in seen] == [
        ("<information>error: neither search nor answer</information>", "error"),
        ("<information>error: empty query</information>", "error"),
        ("<information>error: neither search nor answer</information>", "error"),
        None,
    ]


def test_a_server_that_is_away_is_an_observation(tmp_path: Path) -> None:
    seen, _ = play(offline(tmp_path), TASK, "<search>firm Kitu</search>")
    assert seen[0] is not None
    assert (seen[0].tool, seen[0].text, seen[0].status) == (
        "search",
        "<information>search failed</information>",
        "error",
    )


def test_finding_nothing_is_told(context: EnvironmentContext) -> None:
    seen, _ = play(SearchR1(context), TASK, "<search>qqqq</search>")
    assert seen[0] is not None
    assert (seen[0].text, seen[0].status) == ("<information>nothing found</information>", "error")


def test_episodes_need_a_server(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no search server to ask"):
        SearchR1(EnvironmentContext(tmp_path)).start(TASK)


def prepared(folder: Path, corpus: str = '{"id": "1", "text": "Paris: a city"}\n') -> None:
    """A folder as `libra data prepare` leaves it, by hand."""
    files = {
        "train.jsonl": '{"id": "a", "question": "Which city?", "answers": ["Bano"]}\n',
        "held_out.jsonl": '{"id": "b", "question": "Which town?", "answers": ["Oslo", "Kristiania"]}\n',
        "corpus.jsonl": corpus,
    }
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_text(content)
    entries = {name: FileEntry("", len(content), content.count("\n")) for name, content in files.items()}
    write_manifest(folder, Manifest("search-r1", files=entries))


def test_prepared_data_are_read(tmp_path: Path) -> None:
    prepared(tmp_path / "data")
    environment = offline(tmp_path, data=tmp_path / "data")
    assert environment.tasks("train") == (Task("a", INSTRUCTIONS + "Which city?", {"answers": ["Bano"]}),)
    assert environment.tasks("held_out")[0].truth == {"answers": ["Oslo", "Kristiania"]}
    assert environment.corpus() == tmp_path / "data" / "corpus.jsonl"
    assert environment.max_turn_tok > SearchR1(EnvironmentContext(tmp_path)).max_turn_tok
    with pytest.raises(ConfigError, match="prepared data have no demonstrations"):
        environment.demonstrations(0)


def test_the_workload_offers_it(tmp_path: Path) -> None:
    assert WORKLOAD.environment is not None
    environment = WORKLOAD.environment(EnvironmentContext(tmp_path))
    assert (environment.name, environment.stop) == ("search-r1", ("</search>", "</answer>"))
