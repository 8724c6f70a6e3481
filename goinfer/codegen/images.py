"""A plan's kernels as one linked image a target. Finished images come from the cache without any compiler package."""

from goinfer.bundle_format.plan import Kernel
from goinfer.codegen import cache
from goinfer.codegen.image import CodeImage, link
from goinfer.codegen.target import Target
from goinfer.codegen.workers import Job, Progress, compile_all


def compile_images(
    kernels: list[Kernel], targets: list[Target], progress: Progress | None = None
) -> dict[str, CodeImage]:
    """A linked image per target: the kernels, the step loop, and the checksum function."""
    specs = [Kernel("driver", "driver", {}), Kernel("crc32c", "crc32c", {}), *kernels]
    jobs = {target.name: [Job.of(spec, target) for spec in specs] for target in targets}
    keys = {name: cache.key_of("image", [job.key() for job in work]) for name, work in jobs.items()}
    found = {name: cache.read("images", key) for name, key in keys.items()}
    images = {name: CodeImage.from_bytes(data) for name, data in found.items() if data is not None}
    missing = [name for name in keys if name not in images]
    objects = iter(compile_all([job for name in missing for job in jobs[name]], progress))
    for name in missing:
        image = link({job.spec.symbol: next(objects) for job in jobs[name]})
        cache.write("images", keys[name], image.to_bytes())
        images[name] = image
    return {name: images[name] for name in keys}
