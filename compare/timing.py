"""How long a call takes on the CPU, for the scripts beside this one."""
import statistics, time


def median_ms(call):
    """Median milliseconds of a call, after three to warm up."""
    for _ in range(3):
        call()
    times = []
    start = time.perf_counter()
    while len(times) < 5 or (len(times) < 100 and time.perf_counter() - start < 0.5):
        t = time.perf_counter()
        call()
        times.append((time.perf_counter() - t) * 1e3)
    return statistics.median(times)
