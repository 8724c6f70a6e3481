"""The jobs of one request, seen from the event loop: submit them, await their pieces, cancel them together."""

import asyncio
from collections.abc import AsyncIterator

from goinfer.runtime.generate import Generation, Piece
from goinfer.serve.scheduler import Job, Scheduler, Sink


class Jobs:
    """Submits on construction (all or none); `cancel` must be called at the end, whatever the end was."""

    def __init__(self, scheduler: Scheduler, generations: list[Generation]) -> None:
        self._scheduler = scheduler
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[tuple[int, list[Piece] | Exception]] = asyncio.Queue()
        self.generations = generations
        self._jobs: list[Job] = []
        try:
            for index, generation in enumerate(generations):
                self._jobs.append(scheduler.submit(generation, self._sink(index)))
        except BaseException:
            self.cancel()
            raise

    def cancel(self) -> None:
        """Stop what still runs; harmless for jobs that have ended."""
        for job in self._jobs:
            if job.generation.finish_reason is None:
                self._scheduler.cancel(job)

    async def pieces(self) -> AsyncIterator[tuple[int, list[Piece]]]:
        """(index of the generation, its next pieces) until all have ended; raises the first error of any."""
        running = len(self._jobs)
        while running:
            index, found = await self._queue.get()
            if isinstance(found, Exception):
                raise found
            if found[-1].finish_reason is not None:
                running -= 1
            yield index, found

    def _sink(self, index: int) -> Sink:
        def put(found: list[Piece] | Exception) -> None:
            self._loop.call_soon_threadsafe(self._queue.put_nowait, (index, found))

        return put
