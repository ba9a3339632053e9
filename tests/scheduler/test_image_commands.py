"""Images through queues and batches, without a worker: what is sent, and what a refusal does."""

from __future__ import annotations

import io

import numpy as np
import pytest
import trio.testing
from PIL import Image
from support.instances import take
from support.rig import images, runtime
from support.scheduler_fixtures import MODEL, Guest, Server, refused

from pie_control.errors import ApiError
from pie_control.models.image_sizes import ImageSizes, Measured
from pie_py.wire.images import ImageSize
from pie_py.wire.plan import EmbedImage, ImageMeasured, MeasureImage, Plan

EMBEDS = 4  # an image


def picture(size: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (size, size)).save(file, "PNG")
    return file.getvalue()


def server_of_images() -> Server:
    traits = [*MODEL.traits, "input-image"]
    server = Server(image_place="<image>", traits=traits, max_batch_tokens=24)
    for side in range(3, 12):
        answer = ImageMeasured(MODEL.name, side, side, EMBEDS, EMBEDS, None)
        server.parts.image_sizes.on_measured(answer)
    return server


def embed(guest: Guest, image: bytes, embeds: list[int]) -> None:
    images.embed_img(*guest.at, image, [0, EMBEDS], embeds)


def next_plan(server: Server) -> Plan:
    plan = server.scheduler.next_plan()
    assert plan is not None
    return plan


def finish(server: Server, plan: Plan) -> None:
    server.scheduler.complete(server.worker.run(plan))


def test_images_of_several_instances_go_together() -> None:
    server = server_of_images()
    guests = [Guest(server) for _ in range(3)]
    files = [picture(3 + i) for i in range(3)]
    for guest, file in zip(guests, files, strict=True):
        embed(guest, file, guest.embeds(EMBEDS))
    (batch,) = next_plan(server).batches
    assert isinstance(batch, EmbedImage)
    assert batch.sizes.tolist() == [[3, 3], [4, 4], [5, 5]]
    assert batch.lengths.tolist() == [len(file) for file in files]
    assert batch.positions.tolist() == [0, 1, 2, 3] * 3
    assert len(np.unique(batch.embeds)) == 3 * EMBEDS
    at = 0
    for file in files:
        words = -(-len(file) // 4)
        assert batch.files[at : at + words].tobytes()[: len(file)] == file
        at += words
    assert at == batch.files.size


def test_a_plan_has_one_batch_of_images() -> None:
    """They take longer than all else, and others wait for the plan."""
    server = server_of_images()
    guest = Guest(server)
    embeds, token = guest.embeds(EMBEDS), guest.embeds(1)
    for _ in range(3):  # each overwrites the one before
        embed(guest, picture(5), embeds)
        guest.embed([1], 0, token)
    for _ in range(3):
        plan = next_plan(server)
        assert [batch.kind for batch in plan.batches] == ["embed_image", "embed_text"]
        finish(server, plan)
    assert server.scheduler.next_plan() is None


def test_a_batch_of_images_takes_as_many_embeds_as_a_forward_takes_inputs() -> None:
    server = server_of_images()
    guest = Guest(server)
    for _ in range(8):
        embed(guest, picture(5), guest.embeds(EMBEDS))
    sizes: list[int] = []
    for _ in range(2):
        plan = next_plan(server)
        sizes += [batch.lengths.size for batch in plan.batches if isinstance(batch, EmbedImage)]
        finish(server, plan)
    assert sum(sizes) == 8
    assert max(sizes) <= 24 // EMBEDS


def test_a_refused_image_fails_its_own_queue_only() -> None:
    server = server_of_images()
    bad, good = Guest(server), Guest(server)
    embed(bad, picture(4), bad.embeds(EMBEDS))
    token = bad.embeds(1)
    bad.embed([1], 0, token)
    future = bad.dist(token[0])
    embed(good, picture(5), good.embeds(EMBEDS))
    done = [runtime.synchronize(*guest.at) for guest in (bad, good)]
    plan = next_plan(server)
    server.worker.refusals = {"embed_image": {0: "no such image"}}
    finish(server, plan)
    server.worker.refusals = {}
    while (following := server.scheduler.next_plan()) is not None:
        finish(server, following)
    take(good.instance, done[1])
    with pytest.raises(ApiError, match=r"failed-dependency: .*no such image"):
        bad.take(future)
    take(bad.instance, done[0])  # the future has told it
    bad.embed([1], 0, token)  # and the queue goes on
    finish(server, next_plan(server))


def test_images_that_are_queued_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    file = picture(9)
    monkeypatch.setattr("pie_control.api.images.IMAGE_BYTES", 2 * len(file))
    server = server_of_images()
    monkeypatch.setattr("pie_control.api.images.IMAGE_PIXELS", 100)
    guest = Guest(server)
    embeds = guest.embeds(EMBEDS)
    embed(guest, file, embeds)
    embed(guest, file, embeds)
    with refused("limit-exceeded"):
        embed(guest, file, embeds)
    finish(server, next_plan(server))
    embed(guest, file, embeds)  # one of them has been sent
    with refused("limit-exceeded"):
        embed(guest, picture(11), embeds)


def test_what_does_not_fit_an_image_is_told() -> None:
    guest = Guest(server_of_images())
    (first, _) = guest.embeds(EMBEDS)
    for positions, embeds, told in (
        ([0, 4], [first, 3], "3 embeds for an image that takes 4"),
        ([0, 3], [first, 4], "3 positions, and 4 are needed"),
        ([5000, 4], [first, 4], "is outside the model's context"),
        ([0, 4], [first + 9999, 4], "invalid-handle: "),
    ):
        with pytest.raises(ApiError, match=told):
            images.embed_img(*guest.at, picture(5), positions, embeds)


async def test_an_image_of_a_size_is_measured_once() -> None:
    sent: list[MeasureImage] = []
    sizes = ImageSizes(sent.append)
    found: list[Measured] = []

    async def measure(size: ImageSize) -> None:
        found.append(await sizes.measured("m", size))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(measure, ImageSize(40, 30))
        nursery.start_soon(measure, ImageSize(40, 30))
        await trio.testing.wait_all_tasks_blocked()
        assert sent == [MeasureImage("m", 40, 30)]
        sizes.on_measured(ImageMeasured("m", 40, 30, 12, 4, None))
    assert found == [Measured(12, 4)] * 2
    assert sizes.known("m", ImageSize(40, 30)) == Measured(12, 4)


@pytest.mark.parametrize("lost", [True, False])
async def test_an_image_that_is_not_measured(lost: bool) -> None:
    """The worker is lost meanwhile, or says that the model reads none of that size."""
    sizes = ImageSizes(lambda order: None)
    async with trio.open_nursery() as nursery:

        async def measure() -> None:
            with refused("worker-lost" if lost else "invalid-argument"):
                await sizes.measured("m", ImageSize(40, 30))

        nursery.start_soon(measure)
        await trio.testing.wait_all_tasks_blocked()
        if lost:
            sizes.on_lost(["m"])
        else:
            sizes.on_measured(ImageMeasured("m", 40, 30, 0, 0, "too long a strip"))
    assert sizes.known("m", ImageSize(40, 30)) is None
