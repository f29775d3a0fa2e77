"""Functions that can be paused in the middle and continued later.

An algorithm's `fit` is an ordinary function that needs a gradient now and then. To compute the gradients of several
clients at once, each `fit` must wait in the middle for the others. A thread can do that. Threads are used for this
alone and never run at the same time, so everything happens in one fixed order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Generic, TypeVar

Question = TypeVar("Question")
Answer = TypeVar("Answer")


class Ended(BaseException):
    """Raised in a paused function that must not continue.

    It derives from BaseException so that `except Exception` cannot swallow it.
    """


class PausableCall(Generic[Question, Answer]):
    """A function that runs while its owner waits, and pauses whenever it asks a question.

    Args:
        work: the function. It calls `ask`.
        context: entered by the owner around every stretch of the work.

    Attributes:
        question: the question that the function waits with. None when it does not wait.
        over: whether the function has ended.
        error: the exception that ended it, if any.
    """

    def __init__(self, work: Callable[[], None], context: Callable[[], AbstractContextManager[None]]) -> None:
        self.question: Question | None = None
        self.over = False
        self.error: BaseException | None = None
        self._work, self._context = work, context
        self._answer: Answer | None = None
        self._ending, self._running = False, False
        self._go, self._pause = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def is_here(self) -> bool:
        """Whether the function itself asks, and not its owner while the function waits."""
        return threading.current_thread() is self._thread

    def proceed(self, answer: Answer | None = None) -> None:
        """Let the function run, with the answer to its question, up to its next question or its end."""
        self.question, self._answer = None, answer
        with self._context():
            if self._thread.ident is None:
                self._thread.start()
            self._running = True
            self._go.release()
            self._await()

    def ask(self, question: Question) -> Answer:
        """Called by the function: pause until there is an answer."""
        self.question = question
        self._pause.release()
        self._go.acquire()
        if self._ending:
            raise Ended
        return self._answer  # type: ignore[return-value]

    def end(self) -> None:
        """End the function wherever it is. Its context managers are closed."""
        self._ending = True
        if self._running:  # its owner was interrupted while it ran
            self._await()
        if not self.over and self._thread.ident is not None:
            self.proceed()
        if self._thread.ident is not None:
            self._thread.join()

    def _await(self) -> None:
        self._pause.acquire()
        self._running = False

    def _run(self) -> None:
        self._go.acquire()
        try:
            self._work()
        except Ended:
            pass
        except BaseException as error:
            self.error = error
        finally:
            self.over = True
            self._pause.release()
