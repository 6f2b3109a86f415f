// Appends one word to a list in device memory. One thread.

// The first word of `list` counts those that follow it, of which there is room for `most`.
extern "C" __global__ void append(unsigned* list, const unsigned* __restrict__ value, unsigned most) {
    const unsigned count = list[0];
    if (count < most) list[1 + count] = *value;
    list[0] = count + 1;
}
