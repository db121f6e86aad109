"""One step for several users in one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from ..algebra.parallel import cores
from ..errors import SecAggError

Report = TypeVar("Report")


class Outcome(NamedTuple, Generic[Report]):
    """What the users' steps gave, and what went wrong, in order of the users."""

    reports: dict[int, Report]
    failures: dict[int, SecAggError]

    def every_report(self) -> dict[int, Report]:
        """The reports of all users; the first failure is raised."""
        for error in self.failures.values():
            raise error
        return self.reports

    def left_out(self, path: Callable[[int], Path]) -> dict[int, str]:
        """Why users were left out, of whose files it is known that errors are about them."""
        return {user: error.said_of(path(user)) for user, error in self.failures.items()}


def for_each(
    users: Sequence[int],
    step: Callable[[int], Report],
    jobs: int | None = None,
    done: Callable[[int], None] = lambda _: None,
) -> Outcome[Report]:
    """Run the step of every user, `jobs` at a time; a user that fails does not keep the others from
    finishing."""
    outcome: Outcome[Report] = Outcome({}, {})

    def finish(user: int, report: Callable[[], Report]) -> None:
        try:
            outcome.reports[user] = report()
        except SecAggError as error:
            outcome.failures[user] = error
        done(user)

    if len(users) == 1:  # in this thread, where a signal ends it at once
        finish(users[0], lambda: step(users[0]))
        return outcome
    with ThreadPoolExecutor(jobs or cores()) as pool:
        futures = {pool.submit(step, user): user for user in users}
        try:
            for future in as_completed(futures):
                finish(futures[future], future.result)
        except BaseException:  # a signal, or a bug: start nothing more
            pool.shutdown(cancel_futures=True)
            raise
    return Outcome(dict(sorted(outcome.reports.items())), dict(sorted(outcome.failures.items())))
