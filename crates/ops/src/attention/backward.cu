// Attention backward: blocks own keys and values and stream queries.

// Four columns from `at` on of a row of W floats, past the first-level cache: other blocks write and read them too.
template <int W> __device__ __forceinline__ void load_four(float (&x)[4], const float* row, int at) {
    if (W % 4 == 0) {
        if (at < W) {
            const float4 v = __ldcg(reinterpret_cast<const float4*>(row + at));
            x[0] = v.x; x[1] = v.y; x[2] = v.z; x[3] = v.w;
        }
    } else {
#pragma unroll
        for (int f = 0; f < 4; ++f)
            if (at + f < W) x[f] = __ldcg(row + at + f);
    }
}
template <int W> __device__ __forceinline__ void store_four(float* row, const float (&x)[4], int at) {
    if (W % 4 == 0) {
        if (at < W) __stcg(reinterpret_cast<float4*>(row + at), make_float4(x[0], x[1], x[2], x[3]));
    } else {
#pragma unroll
        for (int f = 0; f < 4; ++f)
            if (at + f < W) __stcg(row + at + f, x[f]);
    }
}

constexpr int SB = DITTO_SB, NB = SB / 4, PP = SB + 4;
// What a thread has of a stage's dq: TT queries of every 8, and GQ times four columns.
constexpr int TT = SB / 8, GQ = (NCD + WARPS - 1) / WARPS, PER = BLOCK / SB;

// Loads a thread's columns of an own row at `row`, as store_row stores them.
template <int W, int NC> __device__ __forceinline__ void load_row(float (&x)[4 * NC], const float* row, int ln) {
#pragma unroll
    for (int c = 0; c < NC; ++c) {
        if (!DITTO_TF32 && W % 4 == 0) {
            if (16 * c + 4 * ln < W) four(reinterpret_cast<float(&)[4]>(x[4 * c]), row + 16 * c + 4 * ln);
        } else {
#pragma unroll
            for (int f = 4 * c; f < 4 * c + 4; ++f)
                if (column_of(ln, f) < W) x[f] = row[column_of(ln, f)];
        }
    }
}

// Adds a chain that is complete to the result so far, times `scale`: 1, which changes nothing, but after the last.
template <int W, int NC>
__device__ __forceinline__ void close_chunk(float (&acc)[TR][4 * NC], float* out, unsigned apart, int own, int count, int ln, bool first, float scale) {
#pragma unroll
    for (int i = 0; i < TR; ++i) {
        if (own + 8 * i < count) {
            float* const row = out + (u64)(own + 8 * i) * (DITTO_INSIDE ? apart : W);
            float old[4 * NC];
#pragma unroll
            for (int c = 0; c < 4 * NC; ++c) old[c] = 0.0f;
            if (!first) load_row<W, NC>(old, row, ln);
#pragma unroll
            for (int c = 0; c < 4 * NC; ++c) acc[i][c] = __fmul_rn(__fadd_rn(old[c], acc[i][c]), scale);
            store_row<W, NC>(row, acc[i], ln);
        }
#pragma unroll
        for (int c = 0; c < 4 * NC; ++c) acc[i][c] = 0.0f;
    }
}

#if !DITTO_TF32
// acc[g][t][f] += weight of (key, query t) times column f of the key, for keys increasing: fused chains.
template <bool SOME> __device__ __forceinline__ void accumulate_queries(float (&acc)[GQ][TT][4], const float* p, const float* x, int keys, int warp) {
    float w[TT], y[GQ][4];
    auto load = [&](int key) {
        if (TT == 4)
            four(reinterpret_cast<float(&)[4]>(w), p + key * PP);
        else
#pragma unroll
            for (int t = 0; t < TT; ++t) w[t] = p[key * PP + t];
#pragma unroll
        for (int g = 0; g < GQ; ++g)
            if (NCD % WARPS == 0 || warp + WARPS * g < NCD) four(y[g], x + key * PD + 16 * WARPS * g);
    };
    auto multiply = [&](int key, bool more) {
        float cw[TT], cy[GQ][4];
#pragma unroll
        for (int t = 0; t < TT; ++t) cw[t] = w[t];
#pragma unroll
        for (int g = 0; g < GQ; ++g)
#pragma unroll
            for (int f = 0; f < 4; ++f) cy[g][f] = y[g][f];
        if (more) load(key + 1);
#pragma unroll
        for (int g = 0; g < GQ; ++g)
#pragma unroll
            for (int t = 0; t < TT; ++t)
#pragma unroll
                for (int f = 0; f < 4; ++f) {
                    const float sum = __fmaf_rn(cw[t], cy[g][f], acc[g][t][f]);
                    acc[g][t][f] = SOME && is_blocked(cw[t]) ? acc[g][t][f] : sum;
                }
    };
    if (keys > 0) load(0);
    // Addresses are those of the first of some keys, which move on together, and distances that are known.
    constexpr int STEP = SOME && !DITTO_MASK ? 2 : 8;
#pragma unroll 1
    for (; keys >= STEP; keys -= STEP) {
#pragma unroll
        for (int key = 0; key < STEP; ++key) multiply(key, key < STEP - 1 || keys > STEP);
        p += STEP * PP;
        x += STEP * PD;
    }
#pragma unroll 1
    for (; keys > 0; --keys) {
        multiply(0, keys > 1);
        p += PP;
        x += PD;
    }
}
#endif

__device__ __forceinline__ unsigned turn_of(const unsigned* turn) {
    unsigned x;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(turn) : "memory");
    return x;
}
__device__ __forceinline__ void pass_on(unsigned* turn, unsigned x) {
    __threadfence();
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(turn), "r"(x) : "memory");
}

// Backward. A block owns keys and streams the queries. A pair's score and slope are made once; dk and dv are the
// block's own, dq goes from block to block in the order of the keys: `turns` counts, for every stage of queries, the
// blocks that are through, and each continues the chains its predecessor left. Work is handed out in order, so that
// whoever is waited for has begun. Streamed q is double buffered, being first and last to be used; streamed dy is
// fetched anew while q is still in use.
extern "C" __global__ void __launch_bounds__(THREADS, DITTO_BLOCKS)
attention_backward(const float* __restrict__ q, const float* __restrict__ k, const float* __restrict__ v, const float* __restrict__ mask,
                   const float* __restrict__ dy, const float* __restrict__ logs, const float* __restrict__ tops, const float* __restrict__ delta,
                   float* dq, float* __restrict__ dk, float* __restrict__ dv, float* chains, unsigned* turns,
                   unsigned batch, unsigned group, unsigned n, unsigned m, unsigned causal, float factor, float scale, MaskView view,
                   Inside inside) {
    extern __shared__ float4 memory[];
    float* const ok = reinterpret_cast<float*>(memory);
    float* const ov = ok + OWN * PD;
    float* const tq = ov + OWN * PV;
    float* const tg = tq + 2 * SB * PD;
    float* const sp = tg + SB * PV;
    u64* const smask = reinterpret_cast<u64*>(sp + OWN * PP);  // of queries, two stages
    float* const slogs = reinterpret_cast<float*>(smask + 2 * SB);
    float* const stops = slogs + 2 * SB;
    float* const sdelta = stops + 2 * SB;
    __shared__ u64 ticket;
#if DITTO_INSIDE
    // Where the list starts in queries, outputs, chains, and what there is per row: read anew each time, since registers are short.
    __shared__ volatile u64 starts[4];
#endif
    // From a shuffle, so that the compiler knows it to be one for all lanes.
    const int warp = __shfl_sync(ALL, threadIdx.x >> 5, 0), lm = lane_m(), ln = lane_n();
    const int own = warp * 8 * TR + lm;
    const int rows = (int)(group * n);
    const unsigned tiles = (m + OWN - 1) / OWN, stages = (rows + SB - 1) / SB;
    const int blocks = (rows + BLOCK - 1) / BLOCK;
    const int column = 4 * (ln + 4 * warp);  // of dq
    for (;;) {
        if (threadIdx.x == 0) {
            ticket = atomicAdd(reinterpret_cast<u64*>(turns), 1ull);
#if DITTO_INSIDE
            const u64 list = ticket % batch;
            starts[0] = list_at<D>(list, n, inside.heads, inside.wide);
            starts[1] = list_at<DV>(list, n, inside.heads, inside.narrow);
            starts[2] = list_at<D>(list, n, inside.heads, inside.chains);
            starts[3] = list * n;
#endif
        }
        __syncthreads();
        const u64 work = ticket;
        if (work >= (u64)tiles * batch) return;
        // The first keys have the most queries under a causal mask.
        const unsigned tile = (unsigned)(work / batch);
        const u64 z = work % batch;
        const int o0 = (int)(tile * OWN);
        const int count = (int)m - o0 < OWN ? (int)m - o0 : OWN;
#if DITTO_INSIDE
        auto stat_at = [&](int r) { return starts[3] + r; };
        auto query_at = [&](int r) { return starts[0] + (u64)(unsigned)r * inside.wide; };
        auto key_at = [&]() { return query_at(o0); };
        auto value_at = key_at;
        auto out_at = [&](int r) { return starts[1] + (u64)(unsigned)r * inside.narrow; };
#else
        const u64 row0 = z * rows;
        auto stat_at = [&](int r) { return row0 + r; };
        auto query_at = [&](int r) { return (row0 + r) * D; };
        const u64 key0 = z * m + o0;
        auto key_at = [&]() { return key0 * D; };
        auto value_at = [&]() { return key0 * DV; };
        auto out_at = [&](int r) { return (row0 + r) * DV; };
#endif
        const int mine = count - warp * 8 * TR < 8 * TR ? count - warp * 8 * TR : 8 * TR;
        unsigned* const turn = turns + 2 + z * stages;

        float ak[TR][4 * NCD], av[TR][4 * NCV];
#pragma unroll
        for (int i = 0; i < TR; ++i) {
#pragma unroll
            for (int c = 0; c < 4 * NCD; ++c) ak[i][c] = 0.0f;
#pragma unroll
            for (int c = 0; c < 4 * NCV; ++c) av[i][c] = 0.0f;
        }

        // Stages come in blocks of BLOCK queries, the last block first. The next place in this order, from `place` on,
        // whose stage is not blocked as a whole.
        auto stage_at = [&](int place) { return (blocks - 1 - place / PER) * BLOCK + place % PER * SB; };
        auto skip = [&](int place) {
            for (; place < blocks * PER; ++place) {
                const int s0 = stage_at(place);
                if (s0 >= rows) continue;
                int a, b;
                query_range(n, s0, rows - s0 < SB ? rows - s0 : SB, a, b);
                if (!causal || b >= o0) break;
            }
            return place;
        };
        auto fetch_q = [&](int s0, int stage) {
            copy_rows<D, PD, SB>(tq + stage * SB * PD, q + query_at(s0), inside.wide, rows - s0 < SB ? rows - s0 : SB);
            const int t = threadIdx.x;
            if (t < SB && s0 + t < rows) {
                slogs[stage * SB + t] = logs[stat_at(s0) + t];
                stops[stage * SB + t] = tops[stat_at(s0) + t];
                sdelta[stage * SB + t] = delta[stat_at(s0) + t];
                if (DITTO_MASK) smask[stage * SB + t] = mask_at(view, z, group, n, s0 + t);
            }
        };
        auto fetch_g = [&](int s0) { copy_rows<DV, PV, SB>(tg, dy + out_at(s0), inside.narrow, rows - s0 < SB ? rows - s0 : SB); };

        copy_rows<D, PD, OWN>(ok, k + key_at(), inside.wide, count);
        copy_rows<DV, PV, OWN>(ov, v + value_at(), inside.wide, count);
        int place = skip(0), before = -1, stage = 0, chunk = 0;
        bool first = true;
        if (place < blocks * PER) {
            fetch_q(stage_at(place), 0);
            fetch_g(stage_at(place));
            chunk = stage_at(place) / CHUNK;
        }
        copy_commit();
        for (;;) {
            const bool is_stage = place < blocks * PER;
            const int s0 = stage_at(place);
            if (!is_stage || s0 / CHUNK != chunk) {
                close_chunk<D, NCD>(ak, dk + key_at(), inside.wide, own, count, ln, first, is_stage ? 1.0f : scale);
                close_chunk<DV, NCV>(av, dv + value_at(), inside.wide, own, count, ln, first, 1.0f);
                first = false;
                chunk = s0 / CHUNK;
            }
            if (!is_stage) break;
            const int next = skip(place + 1);
            const bool more = next < blocks * PER;
            const int here = rows - s0 < SB ? rows - s0 : SB;
            copy_wait<0>();
            __syncthreads();
            if (before >= 0 && threadIdx.x == 0) pass_on(turn + before / SB, tile + 1);
            // The other buffer of q was last read before the barrier.
            if (more) fetch_q(stage_at(next), stage ^ 1);
            copy_commit();
            int low, high;
            query_range(n, s0, here, low, high);
            const int key_low = o0 + warp * 8 * TR;
            const bool active = mine > 0 && (!causal || key_low <= high);
            const bool some = DITTO_MASK || here < SB || (causal && key_low + mine - 1 > low) || (DITTO_TF32 && mine < 8 * TR);
            float* const p = sp + own * PP;
            float s[TR][NB];
            if (active) {
                products<D, PD, NB>(s, ok + own * PD, tq + stage * SB * PD);
#pragma unroll
                for (int j = 0; j < NB; ++j) {
                    const float less = -slogs[stage * SB + streamed(ln, j)], top = stops[stage * SB + streamed(ln, j)];
#pragma unroll
                    for (int i = 0; i < TR; ++i) s[i][j] = weight(__fmaf_rn(__fsub_rn(SCORE(s[i][j]), top), factor, less));
                }
                if (some) {
#pragma unroll
                    for (int j = 0; j < NB; ++j) {
                        const int t = streamed(ln, j);
                        const int query = query_of(s0 + t, n);
                        const u64 at = DITTO_MASK && t < here ? smask[stage * SB + t] : 0;
#pragma unroll
                        for (int i = 0; i < TR; ++i) {
                            const int key = o0 + own + 8 * i;
                            bool open = t < here && (!causal || key <= query);
                            if (DITTO_MASK && open && own + 8 * i < count) open = fabsf(mask[at + key * view.column]) > 0.0f;
                            if (DITTO_TF32 && own + 8 * i >= count) open = false;
                            s[i][j] = open ? s[i][j] : DITTO_TF32 ? 0.0f : __uint_as_float(BLOCKED);
                        }
                    }
                }
#if DITTO_TF32
                accumulate<PV, NCV, NB>(av, s, tg);
                float dp[TR][NB];
                products<DV, PV, NB>(dp, ov + own * PV, tg);
#pragma unroll
                for (int j = 0; j < NB; ++j) {
                    // Nothing was fetched of queries beyond the end.
                    const float less = streamed(ln, j) < here ? sdelta[stage * SB + streamed(ln, j)] : 0.0f;
#pragma unroll
                    for (int i = 0; i < TR; ++i) {
                        s[i][j] = s[i][j] * (dp[i][j] - less);
                        p[i * 8 * PP + streamed(ln, j)] = s[i][j];
                    }
                }
            } else {
#pragma unroll
                for (int j = 0; j < NB; ++j)
#pragma unroll
                    for (int i = 0; i < TR; ++i) p[i * 8 * PP + streamed(ln, j)] = 0.0f;
            }
#else
#pragma unroll
                for (int i = 0; i < TR; ++i)
#pragma unroll
                    for (int j = 0; j < NB; ++j) p[i * 8 * PP + ln + 4 * j] = s[i][j];
                __syncwarp();
                accumulate<PV, NCV, SB, PP>(some, av, p, tg + 4 * ln);
                __syncwarp();
                // Weights wait in shared memory for their slopes, so that registers need not hold both.
                products<DV, PV, NB>(s, ov + own * PV, tg);
#pragma unroll
                for (int j = 0; j < NB; ++j) {
                    const float less = sdelta[stage * SB + ln + 4 * j];
#pragma unroll
                    for (int i = 0; i < TR; ++i) {
                        float& w = p[i * 8 * PP + ln + 4 * j];
                        const float slope = __fmul_rn(w, __fsub_rn(s[i][j], less));
                        w = is_blocked(w) ? w : slope;
                    }
                }
            }
#endif
            __syncthreads();
            // All warps are done with dy.
            if (more) fetch_g(stage_at(next));
            copy_commit();
            // The chains of dq so far, on their way while dk is made.
            const int last = causal && high / OWN < (int)tiles - 1 ? high / OWN : (int)tiles - 1;
            if (active) {
#if DITTO_TF32
                accumulate<PD, NCD, NB>(ak, s, tq + stage * SB * PD);
#else
                accumulate<PD, NCD, SB, PP>(some, ak, p, tq + stage * SB * PD + 4 * ln);
#endif
            }
            if (tile > 0) {
                if ((threadIdx.x & 31) == 0)
                    while (turn_of(turn + s0 / SB) < tile) __nanosleep(20);
                __syncwarp();
            }
            // A row of dq, or of its chains under way; the stage's first one.
#if DITTO_INSIDE
            const unsigned first_row = s0;
            auto row_of = [&](bool whole, unsigned row) { return (whole ? dq : chains) + starts[whole ? 0 : 2] + (u64)row * (whole ? inside.wide : inside.chains); };
#else
            const u64 first_row = row0 + s0;
            auto row_of = [&](bool whole, u64 row) { return (whole ? dq : chains) + row * D; };
#endif
            const bool closes = (int)tile == last || (o0 + OWN) % CHUNK == 0;
            const int keys = causal && high - o0 + 1 < count ? high - o0 + 1 : count;
#if DITTO_TF32
            // A warp has 16 columns of 16 queries of the stage, at a time.
#pragma unroll 1
            for (int u = warp; u < NCD * (SB / 16); u += WARPS) {
                const int c0 = 16 * (u % NCD), q0 = 16 * (u / NCD);
                float aq[2][4];
                auto place = [&](bool whole, int r, int h) { return row_of(whole, first_row + r) + c0 + 8 * h + 2 * ln; };
#pragma unroll
                for (int r = 0; r < 2; ++r)
#pragma unroll
                    for (int h = 0; h < 2; ++h) {
                        float2 x = make_float2(0.0f, 0.0f);
                        if (o0 % CHUNK != 0 && q0 + 8 * r + lm < here && c0 + 8 * h < D)
                            x = __ldcg(reinterpret_cast<const float2*>(place(false, q0 + 8 * r + lm, h)));
                        aq[r][2 * h] = x.x;
                        aq[r][2 * h + 1] = x.y;
                    }
                const float* const left = sp + 2 * ln * PP + q0 + lm;
                const float* const right = ok + 2 * ln * PD + c0 + lm;
#pragma unroll 4
                for (int key = 0; key < keys; key += 8) {
                    unsigned x[2][2];
#pragma unroll
                    for (int r = 0; r < 2; ++r)
#pragma unroll
                        for (int h = 0; h < 2; ++h) x[r][h] = tf32(left[(key + h) * PP + 8 * r]);
#pragma unroll
                    for (int h = 0; h < 2; ++h) {
                        const unsigned y0 = tf32(right[key * PD + 8 * h]), y1 = tf32(right[(key + 1) * PD + 8 * h]);
                        mma(aq[0][2 * h], aq[0][2 * h + 1], aq[1][2 * h], aq[1][2 * h + 1], x[0][0], x[1][0], x[0][1], x[1][1], y0, y1);
                    }
                }
#pragma unroll
                for (int r = 0; r < 2; ++r)
#pragma unroll
                    for (int h = 0; h < 2; ++h) {
                        if (q0 + 8 * r + lm >= here || c0 + 8 * h >= D) continue;
                        float2 x = make_float2(aq[r][2 * h], aq[r][2 * h + 1]);
                        if (closes) {
                            if (o0 >= CHUNK) {
                                const float2 old = __ldcg(reinterpret_cast<const float2*>(place(true, q0 + 8 * r + lm, h)));
                                x.x += old.x;
                                x.y += old.y;
                            }
                            if ((int)tile == last) {
                                x.x *= scale;
                                x.y *= scale;
                            }
                        }
                        __stcg(reinterpret_cast<float2*>(place(closes, q0 + 8 * r + lm, h)), x);
                    }
            }
#else
            float aq[GQ][TT][4];
#pragma unroll
            for (int g = 0; g < GQ; ++g)
#pragma unroll
                for (int t = 0; t < TT; ++t)
#pragma unroll
                    for (int f = 0; f < 4; ++f) aq[g][t][f] = 0.0f;
            if (o0 % CHUNK != 0) {
#pragma unroll
                for (int g = 0; g < GQ; ++g)
#pragma unroll
                    for (int t = 0; t < TT; ++t)
                        if (lm * TT + t < here) load_four<D>(aq[g][t], row_of(false, first_row + lm * TT + t), column + 16 * WARPS * g);
            }
            // Keys that are open to all queries of the stage come first.
            const int all = DITTO_MASK ? 0 : causal ? min(max(low - o0 + 1, 0), keys) : keys;
            if (!DITTO_MASK) accumulate_queries<false>(aq, sp + lm * TT, ok + column, all, warp);
            if (all < keys) accumulate_queries<true>(aq, sp + all * PP + lm * TT, ok + all * PD + column, keys - all, warp);
#pragma unroll
            for (int g = 0; g < GQ; ++g)
#pragma unroll
                for (int t = 0; t < TT; ++t) {
                    if (lm * TT + t >= here) continue;
                    const int c = column + 16 * WARPS * g;
                    if (closes) {
                        float old[4] = {0.0f, 0.0f, 0.0f, 0.0f};
                        if (o0 >= CHUNK) load_four<D>(old, row_of(true, first_row + lm * TT + t), c);
#pragma unroll
                        for (int f = 0; f < 4; ++f) {
                            aq[g][t][f] = __fadd_rn(old[f], aq[g][t][f]);
                            if ((int)tile == last) aq[g][t][f] = __fmul_rn(aq[g][t][f], scale);
                        }
                    }
                    store_four<D>(row_of(closes, first_row + lm * TT + t), aq[g][t], c);
                }
#endif
            before = s0;
            place = next;
            stage ^= 1;
        }
        copy_wait<0>();
        __syncthreads();
        if (before >= 0 && threadIdx.x == 0) pass_on(turn + before / SB, tile + 1);
    }
}
