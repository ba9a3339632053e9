/* One forward: all layers of a decoder of Llama's kind over rows, a token each.

   The threads of one parallel region meet between the phases of a layer, spinning: a phase takes
   microseconds. In a phase they claim parts of the work one after the other, so that one that the
   system has put aside holds up only what it has claimed.

   A row's result depends on neither the other rows nor the threads: what is summed is summed in one
   order. Keys are attended to in chunks of a fixed number, which are joined in order. Only rows that
   attend in tiles, of a prompt or a shared prefix, have sums in another order than rows alone. */
#include "grouped.c"
#include <limits.h>
#include <math.h>
#include <sched.h>

extern int omp_get_num_threads(void), omp_get_num_procs(void), omp_get_thread_num(void);

#define KEYS 128 /* of a chunk, at most */
#define KEYS_AHEAD 64 /* keys that are put into a cache ahead */
#define HEADS 128 /* query heads, at most */
#define RANKS 512 /* of an adapter, at once */
/* Rows that attend to what they share together: a tile of fewer takes as long as they do alone. */
enum { FEWEST_SHARING = 4, MOST_SHARING = 256 };

typedef struct {
  const Product *parts; /* outputs side by side; `y` is where theirs begin, in bytes */
  long count;
} Products;

enum { QUERY_KEY_VALUE, OUTPUT, GATE_UP, DOWN, PRODUCTS };
enum { ATTENTION, MLP, QUERY, KEY, NORMS };
typedef struct {
  Products products[PRODUCTS];
  const float *norms[NORMS]; /* weights; of queries and keys there may be none */
  void *pool;                /* [slots, 2, kv_heads, dim] */
  long window;               /* in positions; 0: none */
  int rope;                  /* number, or -1 */
  float scale, cap;          /* of scores; they come no nearer to the cap, if it is not 0 */
  const float *sinks;        /* [heads] scores of a key without a value, or none */
} Layer;

typedef struct {
  const Layer *layers;
  const float *norm; /* the last */
  long count, hidden, heads, kv_heads, dim, inner;
  int interleaved; /* of pairs that turn */
  /* Inputs of products, what gate and up give, queries, keys and values. What is added to the
     inputs, layer by layer, is not rounded. */
  int bfloat16;
  float epsilon;
} Model;

typedef struct {
  const void *cosines, *sines; /* [rows, turned], rows `stride` apart */
  long turned, stride;
} Angles;

/* What an adapter adds to a product: `x · down · up`. */
typedef struct {
  const void *down, *up; /* [in, rank], [rank, out] */
  long rank;             /* a multiple of LANES; 0: nothing */
} LowRank;

typedef struct {
  float *x;    /* [rows, hidden], overwritten */
  void *found; /* [outputs, hidden], behind the last norm */
  const Angles *angles;
  const int64_t *slots, *starts, *keys; /* [rows]: its own; of its entries; how many it sees */
  const int32_t *entries;               /* pages of `page_size` slots */
  const int32_t *positions;             /* of slots */
  long rows, page_size;
  long most_alone;       /* rows of a sequence that attend one by one; of more, in tiles */
  /* Which of its keys a row sees, a byte each, and LANES more: [rows], 0 of one that sees all; none
     if all do. */
  const uint8_t *const *rules;
  /* Of rows that begin with the same keys as others: how many of these, in whole chunks, and the
     first such row, [rows]; 0 keys of others; none if there are none. */
  const int64_t *shared, *leaders;
  const int64_t *owners;    /* [rows]: the adapter of each, or -1; none if no row has one */
  const LowRank *low_ranks; /* [adapters, layers, PRODUCTS] */
  const int64_t *wanted;    /* [outputs] rows, from the first to the last */
  long outputs;
  char *room;
} Step;

#define RANGES 16 /* at most */
typedef struct {
  _Alignas(64) long claimed;
} Range;

/* Where the threads are. */
typedef struct {
  Range ranges[RANGES];   /* of a product's parts */
  _Alignas(64) long next; /* part of the phase that is to be claimed */
  _Alignas(64) int arrived;
  _Alignas(64) int phase;
  int threads;
  long patience; /* turns of waiting before others get the core */
} Team;

static long claim(Team *team, long parts) {
  long part = __atomic_fetch_add(&team->next, 1, __ATOMIC_RELAXED);
  return part < parts ? part : -1;
}
/* One of the parts that lie side by side: a thread goes on where it has fetched weights ahead, and
   then where others are late. */
static long claim_near(Team *team, long parts) {
  if (team->threads == 1) return claim(team, parts);
  const int ranges = team->threads < RANGES ? team->threads : RANGES, own = omp_get_thread_num();
  for (int i = 0; i < ranges; i++) {
    const int at = (own + i) % ranges;
    const long first = parts * at / ranges, end = parts * (at + 1) / ranges;
    long *claimed = &team->ranges[at].claimed;
    if (__atomic_load_n(claimed, __ATOMIC_RELAXED) >= end - first) continue;
    const long part = first + __atomic_fetch_add(claimed, 1, __ATOMIC_RELAXED);
    if (part < end) return part;
  }
  return -1;
}
#define EACH(NAME, PARTS) for (long NAME; (NAME = claim(team, PARTS)) >= 0;)
/* Rows, of many some at once. */
#define EACH_ROW(NAME, ROWS_OF)                                                                    \
  for (long of = ROWS_OF, by = of > 64 ? 8 : 1, at_once;                                           \
       (at_once = claim(team, (of + by - 1) / by)) >= 0;)                                          \
    for (long NAME = at_once * by; NAME < of && NAME < (at_once + 1) * by; NAME++)

static void meet(Team *team) {
  const int phase = __atomic_load_n(&team->phase, __ATOMIC_RELAXED);
  if (__atomic_add_fetch(&team->arrived, 1, __ATOMIC_ACQ_REL) == team->threads) {
    team->arrived = 0, team->next = 0;
    for (int i = 0; i < RANGES; i++) team->ranges[i].claimed = 0;
    __atomic_store_n(&team->phase, phase + 1, __ATOMIC_RELEASE);
    return;
  }
  for (long turns = 0; __atomic_load_n(&team->phase, __ATOMIC_ACQUIRE) == phase; turns++) {
#ifdef __x86_64__
    __builtin_ia32_pause();
#endif
    if (turns >= team->patience) sched_yield();
  }
}

/* The team, once all threads have come to it. */
static Team *gathered(Team *team, Before *before) {
  begin(before);
#pragma omp single
  {
    team->threads = omp_get_num_threads();
    team->patience = team->threads > omp_get_num_procs() ? 0 : 100000;
  }
  return team;
}

INLINE void save(void *to, long at, floats value, int bfloat16) {
  if (bfloat16) *(halves *)((uint16_t *)to + at) = to_bfloat16(value);
  else *(floats *)((float *)to + at) = value;
}

INLINE floats chosen(ints second, floats a, floats b) {
  return (floats)((~second & (ints)a) | (second & (ints)b));
}

/* `a` if either is no number. */
INLINE floats larger(floats a, floats b) { return chosen((ints)(b > a), a, b); }
INLINE floats smaller(floats a, floats b) { return chosen((ints)(b < a), a, b); }

/* e to the power of numbers, or of 88 if they are greater; 0 of what is less than -87. */
INLINE floats exponential(floats x) {
#ifdef __AVX512F__
  const __m512 least = _mm512_set1_ps(-87.0f);
  const __m512 own = _mm512_min_ps(_mm512_set1_ps(88.0f), (__m512)x);
  const __mmask16 counts = _mm512_cmp_ps_mask(own, least, _CMP_NLT_UQ);
  const floats whole = (floats)_mm512_roundscale_ps((__m512)((floats)own * 1.44269504f), 0);
  floats rest = (floats)own - whole * 0.693359375f + whole * 2.12194440e-4f;
#else
  floats bounded = larger(smaller(x, (floats){0} + 88.0f), (floats){0} - 87.0f);
  floats steps = bounded * 1.44269504f + 12582912.0f; /* rounded: its last bits are the number */
  ints power = (ints)steps - 0x4b400000;
  floats whole = steps - 12582912.0f;
  floats rest = bounded - whole * 0.693359375f + whole * 2.12194440e-4f;
#endif
  floats found = (floats){0} + 1.9875691500e-4f;
  found = found * rest + 1.3981999507e-3f;
  found = found * rest + 8.3334519073e-3f;
  found = found * rest + 4.1665795894e-2f;
  found = found * rest + 1.6666665459e-1f;
  found = found * rest + 5.0000001201e-1f;
  found = found * rest * rest + rest + 1.0f;
#ifdef __AVX512F__
  return (floats)_mm512_maskz_scalef_ps(counts, (__m512)found, (__m512)whole);
#else
  found *= (floats)((power + 127) << 23);
  return chosen((ints)(x < -87.0f), found, (floats){0});
#endif
}

/* `cap * tanh(x / cap)`; without a cap as it is. */
INLINE floats capped(floats x, float cap) {
  return cap ? cap - 2 * cap / (exponential(x * (2 / cap)) + 1.0f) : x;
}

typedef uint8_t bytes __attribute__((vector_size(LANES), aligned(1)));

/* The totals of vectors, a lane each. */
INLINE floats totals(floats of[LANES]) {
  float found[LANES];
  UNROLL16 for (int i = 0; i < LANES; i++) {
    four sum = {0};
    UNROLL for (int j = 0; j < LANES / 4; j++) sum += ((const four *)(of + i))[j];
    found[i] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
  }
  return *(floats *)found;
}

/* What there are registers for: vectors and query heads whose values are summed at once. */
enum { VECTORS = REGISTERS / 8, MOST = 4 };

/* Scores of a query by a vector of keys. */
INLINE floats scores_of(const void *query, const char *const *keys, long dim, const int bfloat16) {
  floats sum[LANES];
  long d = 0;
  UNROLL16 for (int i = 0; i < LANES; i++) sum[i] = (floats){0};
#if BFLOAT16
  for (; bfloat16 && d + 32 <= dim; d += 32) {
    const int *q = (const int *)((const uint16_t *)query + d);
    UNROLL16 for (int i = 0; i < LANES; i++)
      sum[i] = (floats)_mm512_dpbf16_ps((__m512)sum[i], (__m512bh)_mm512_loadu_si512(q),
                                        (__m512bh)_mm512_loadu_si512(keys[i] + 2 * d));
  }
#endif
  for (; d < dim; d += LANES) {
    floats q = load(query, d, bfloat16);
    UNROLL16 for (int i = 0; i < LANES; i++) sum[i] += q * load(keys[i], d, bfloat16);
  }
  return totals(sum);
}

/* Adds values by their weights, of some query heads and some vectors. */
INLINE void add(const int heads, const int count, const char *const *values,
                const float (*weights)[KEYS], long keys, long at, float *found, long dim,
                const int bfloat16) {
  floats sum[MOST * VECTORS];
  UNROLL16 for (int i = 0; i < heads * count; i++) sum[i] = (floats){0};
  for (long k = 0; k < keys; k++)
    UNROLL for (int d = 0; d < count; d++) {
      floats value = load(values[k], at + d * LANES, bfloat16);
      UNROLL for (int h = 0; h < heads; h++) sum[h * count + d] += weights[h][k] * value;
    }
  UNROLL for (int h = 0; h < heads; h++)
    UNROLL for (int d = 0; d < count; d++)
      *(floats *)(found + h * dim + at + d * LANES) = sum[h * count + d];
}

INLINE void add_all(const int heads, const char *const *values, const float (*weights)[KEYS],
                    long keys, float *found, long dim, const int bfloat16) {
  long d = 0;
  for (; d + VECTORS * LANES <= dim; d += VECTORS * LANES)
    add(heads, VECTORS, values, weights, keys, d, found, dim, bfloat16);
  for (; d < dim; d += LANES) add(heads, 1, values, weights, keys, d, found, dim, bfloat16);
}

/* What some query heads of a key head find; how many they are. */
static int found_by(int heads, const char *const *values, const float (*weights)[KEYS], long keys,
                    float *found, long dim, int bfloat16) {
#define HEADS_OF(COUNT)                                                                            \
  if (COUNT <= MOST && heads >= COUNT) {                                                           \
    if (bfloat16) add_all(COUNT, values, weights, keys, found, dim, 1);                            \
    else add_all(COUNT, values, weights, keys, found, dim, 0);                                     \
    return COUNT;                                                                                  \
  }
  HEADS_OF(4) HEADS_OF(3) HEADS_OF(2) HEADS_OF(1)
  return 1;
}

/* Puts a part of a slot into a cache. */
INLINE void fetch(const char *from, long bytes) {
  for (long i = 0; i < bytes; i += 64) __builtin_prefetch(from + i, 0, 2);
}

static long shared_of(const Step *s, long row) { return s->shared ? s->shared[row] : 0; }

/* Chunks of a row's keys; those that it shares are one. */
static long chunks_of(const Step *s, long row) {
  const long shared = shared_of(s, row);
  return (shared > 0) + (s->keys[row] - shared + KEYS - 1) / KEYS;
}

/* What the query heads of some key heads find in a chunk of keys: for each key head the sums, then
   for each query head the largest score and the sum of weights. Into `given`, if there is one, go
   the weights, `[query heads, KEYS]`. */
static void attend(const Model *m, const Layer *l, const Step *s, const char *queries, long row,
                   long chunk, long first_head, long end_head, float *found, float *given) {
  const long group = m->heads / m->kv_heads, dim = m->dim, each = m->bfloat16 ? 2 : 4;
  const long size = dim * each, half = m->kv_heads * size, some = end_head - first_head;
  const long shared = shared_of(s, row), first = shared + (chunk - (shared > 0)) * KEYS;
  const long left = s->keys[row] - first, keys = left < KEYS ? left : KEYS;
  const int32_t *entries = s->entries + s->starts[row];
  const long oldest = l->window ? s->positions[s->slots[row]] - l->window : LONG_MIN;
  const uint8_t *rule = s->rules ? s->rules[row] : 0;
  const char *slots[KEYS + KEYS_AHEAD], *at[KEYS];
  float weights[HEADS][KEYS], past[KEYS];
  /* The first keys of the next chunk are read ahead, too. */
  const long known = left < KEYS + KEYS_AHEAD ? left : KEYS + KEYS_AHEAD;
  for (long k = 0; k < known; k++) {
    const long n = first + k, slot = entries[n / s->page_size] * s->page_size + n % s->page_size;
    slots[k] = (const char *)l->pool + slot * 2 * half + first_head * size;
    if (k < KEYS_AHEAD) fetch(slots[k], some * size), fetch(slots[k] + half, some * size);
    if (k >= keys) continue;
    const int hidden = (l->window && s->positions[slot] <= oldest) || (rule && !rule[n]);
    past[k] = hidden ? -INFINITY : 0;
  }
  for (long k = known; k < (keys + LANES - 1) / LANES * LANES; k++)
    slots[k] = slots[keys - 1], past[k] = -INFINITY;
  for (long k = 0; k < keys; k += LANES) {
    for (long i = k + KEYS_AHEAD; i < k + KEYS_AHEAD + LANES && i < known; i++)
      fetch(slots[i], some * size), fetch(slots[i] + half, some * size);
    for (long h = 0; h < some * group; h++) {
      const char *query = queries + (first_head * group + h) * size;
      const char *own[LANES];
      for (int i = 0; i < LANES; i++) own[i] = slots[k + i] + h / group * size;
      floats score = m->bfloat16 ? scores_of(query, own, dim, 1) : scores_of(query, own, dim, 0);
      *(floats *)(weights[h] + k) = capped(score * l->scale, l->cap) + *(floats *)(past + k);
    }
  }
  for (long kv = 0; kv < some; kv++, found += group * (dim + 2)) {
    float(*mine)[KEYS] = weights + kv * group, *most = found + group * dim;
    for (long h = 0; h < group; h++) {
      floats largest = (floats){0} - INFINITY, sum = {0};
      for (long k = 0; k < keys; k += LANES) largest = larger(largest, *(floats *)(mine[h] + k));
      most[h] = largest[0];
      for (int i = 1; i < LANES; i++) most[h] = largest[i] > most[h] ? largest[i] : most[h];
      for (long k = 0; k < keys; k += LANES) {
        floats weight = {0};
        if (most[h] > -INFINITY) weight = exponential(*(floats *)(mine[h] + k) - most[h]);
        *(floats *)(mine[h] + k) = weight;
        sum += weight;
      }
      most[group + h] = total(sum);
    }
    if (given) memcpy(given + kv * group * KEYS, mine, group * sizeof *mine);
    for (long k = 0; k < keys; k++) at[k] = slots[k] + half + kv * size;
    for (long h = 0; h < group;)
      h += found_by(group - h, at, mine + h, keys, found + h * dim, dim, m->bfloat16);
  }
}

/* Joins what a row's heads have found in its chunks. */
static void join(const Model *m, const Layer *l, const float *parts, long chunks, void *found,
                 long row) {
  const long heads = m->heads / m->kv_heads, dim = m->dim, size = heads * (dim + 2);
  for (long kv = 0; kv < m->kv_heads; kv++)
    for (long h = 0; h < heads; h++) {
      const float sink = l->sinks ? l->sinks[kv * heads + h] : -INFINITY;
      float most = sink, sum = 0;
      for (long c = 0; c < chunks; c++) {
        const float own = parts[(c * m->kv_heads + kv) * size + heads * dim + h];
        if (own > most) most = own;
      }
      float whole[256];
      for (long d = 0; d < dim; d += LANES) *(floats *)(whole + d) = (floats){0};
      for (long c = 0; c < chunks && most > -INFINITY; c++) {
        const float *part = parts + (c * m->kv_heads + kv) * size;
        floats share = exponential((floats){0} + (part[heads * dim + h] - most));
        sum += share[0] * part[heads * dim + heads + h];
        for (long d = 0; d < dim; d += LANES)
          *(floats *)(whole + d) += share * *(const floats *)(part + h * dim + d);
      }
      if (sink > -INFINITY) sum += exponential((floats){0} + (sink - most))[0];
      for (long d = 0; d < dim; d += LANES) {
        floats value = *(floats *)(whole + d);
        if (sum > 0) value /= sum;
        save(found, row * m->heads * dim + (kv * heads + h) * dim + d, value, m->bfloat16);
      }
    }
}

/* Prompts: rows of a sequence attend in tiles, block by block of its keys (FlashAttention, Dao et
   al. 2022), which are packed as products read them: words of two bfloat16 numbers or a float32. */
#define TILE_ROWS 48
enum { CORNER_ROWS = 6, CORNER_LANES = 2 };
typedef struct {
  const long *members; /* of several sequences, which attend to what they share, or none */
  long heads;          /* of each, side by side: 1 but for members */
  long row, rows;      /* the first, where they lie side by side; of the tile, one for each head */
  long keys;           /* that they attend to, the last of them to all */
  long packed;         /* bytes before these, packed */
} Tile;

static long row_of(const Tile *t, long r) {
  return t->members ? t->members[r / t->heads] : t->row + r;
}

typedef struct {
  long row, first, packed; /* a row of the sequence; the first key; bytes before it */
} Block;

/* Whether a packed word has two numbers. */
INLINE int in_pairs(const Model *m) { return m->bfloat16 && BFLOAT16; }

/* Bytes of the keys, or the values, of a key head in a block. */
INLINE long block_size(const Model *m) { return KEYS * m->dim * (in_pairs(m) ? 2 : 4); }

INLINE uint32_t number_at(const Model *m, const char *from, long i) {
  return m->bfloat16 ? (uint32_t)((const uint16_t *)from)[i] << 16 : ((const uint32_t *)from)[i];
}

#ifdef __clang__
#define SHUFFLE(A, B, ...) __builtin_shufflevector(A, B, __VA_ARGS__)
#else
#define SHUFFLE(A, B, ...) __builtin_shuffle(A, B, (words){__VA_ARGS__})
#endif
#define FOUR(OF, S, AT) OF(AT, S), OF(AT + 1, S), OF(AT + 2, S), OF(AT + 3, S)
#if LANES == 16
#define EACH_LANE(OF, S) FOUR(OF, S, 0), FOUR(OF, S, 4), FOUR(OF, S, 8), FOUR(OF, S, 12)
#elif LANES == 8
#define EACH_LANE(OF, S) FOUR(OF, S, 0), FOUR(OF, S, 4)
#else
#define EACH_LANE(OF, S) FOUR(OF, S, 0)
#endif
#define EARLIER(LANE, S) ((LANE) & (S) ? LANES + ((LANE) ^ (S)) : (LANE))
#define LATER(LANE, S) ((LANE) & (S) ? LANES + (LANE) : (LANE) | (S))

/* Rows and lanes change places. */
INLINE void transpose(words block[LANES]) {
#define EXCHANGE(S)                                                                                \
  UNROLL16 for (int i = 0; i < LANES && S < LANES; i++) if (!(i & S)) {                                         \
    const words first = block[i], second = block[i | S];                                           \
    block[i] = SHUFFLE(first, second, EACH_LANE(EARLIER, S));                                        \
    block[i | S] = SHUFFLE(first, second, EACH_LANE(LATER, S));                                      \
  }
  EXCHANGE(1) EXCHANGE(2) EXCHANGE(4) EXCHANGE(8)
}

/* A vector of words: pairs of numbers as they are stored, or a number each. */
INLINE words words_at(const char *from, long at, const int pairs, const int bfloat16) {
  return pairs ? *(const words *)(from + 4 * at) : (words)load(from, at, bfloat16);
}

/* Packs keys as [LANES keys][words of a key][a key], values as [LANES dimensions][words of keys][a
   dimension], of one key head; zeros behind the last. */
INLINE void pack_block(const Model *m, const Layer *l, const Step *s, const Block *b, long head,
                       char *packed, const int pairs, const int bfloat16) {
  const long dim = m->dim, size = dim * (bfloat16 ? 2 : 4), half = m->kv_heads * size;
  const long left = s->keys[b->row] - b->first, keys = left < KEYS ? left : KEYS;
  const long words_of = pairs ? dim / 2 : dim, each = pairs ? 2 : 1;
  const int32_t *entries = s->entries + s->starts[b->row];
  words *to = (words *)packed, *values = (words *)(packed + block_size(m));
  static const char nothing[256 * 4];
  for (long k = 0; k < KEYS; k += LANES) {
    const char *from[LANES], *value[LANES];
    for (long i = 0; i < LANES; i++) {
      const long n = b->first + k + i;
      from[i] = value[i] = nothing;
      if (k + i >= keys) continue;
      from[i] = (const char *)l->pool + head * size +
                (entries[n / s->page_size] * s->page_size + n % s->page_size) * 2 * half;
      value[i] = from[i] + half;
    }
    for (long w = 0; w < words_of; w += LANES) {
      words block[LANES];
      UNROLL16 for (int i = 0; i < LANES; i++) block[i] = words_at(from[i], w, pairs, bfloat16);
      transpose(block);
      /* Of a key whose words do not fill the last block, values were read that nothing takes. */
      for (long i = 0; i < LANES && w + i < words_of; i++)
        to[k / LANES * words_of + w + i] = block[i];
    }
    for (long i = 0; i < LANES; i += each)
      for (long d = 0; d < dim; d += LANES) {
        words word = (words)load(value[i], d, bfloat16);
        if (pairs) word = word >> 16 | (words)load(value[i + 1], d, bfloat16);
        values[d / LANES * (KEYS / each) + (k + i) / each] = word;
      }
  }
}

static void pack_keys(const Model *m, const Layer *l, const Step *s, const Block *b, long head,
                      char *packed) {
  if (in_pairs(m)) pack_block(m, l, s, b, head, packed, 1, 1);
  else if (m->bfloat16) pack_block(m, l, s, b, head, packed, 0, 1);
  else pack_block(m, l, s, b, head, packed, 0, 0);
}

/* Products of some rows of words `a` with packed `b`, whose lanes lie `apart`, [rows, lanes]; if
   there are `shares`, added to those shares of what `c` was. */
INLINE void corner(const int pairs, const int lanes, const char *a, long a_row, const words *b,
                   long apart, long count, float *c, long c_row, const float *shares) {
  floats sum[CORNER_ROWS][CORNER_LANES];
  UNROLL for (int r = 0; r < CORNER_ROWS; r++)
    UNROLL for (int n = 0; n < lanes; n++) sum[r][n] = (floats){0};
  for (long k = 0; k < count; k++) {
    words own[CORNER_LANES];
    UNROLL for (int n = 0; n < lanes; n++) own[n] = b[n * apart + k];
    UNROLL for (int r = 0; r < CORNER_ROWS; r++) {
      const char *at = a + r * a_row + 4 * k;
#if BFLOAT16
      if (pairs) {
        const __m512bh both = (__m512bh)_mm512_set1_epi32(*(const int *)at);
        UNROLL for (int n = 0; n < lanes; n++)
          sum[r][n] = (floats)_mm512_dpbf16_ps((__m512)sum[r][n], both, (__m512bh)own[n]);
        continue;
      }
#endif
      UNROLL for (int n = 0; n < lanes; n++) sum[r][n] += *(const float *)at * (floats)own[n];
    }
  }
  UNROLL for (int r = 0; r < CORNER_ROWS; r++)
    UNROLL for (int n = 0; n < lanes; n++) {
      floats *to = (floats *)(c + r * c_row + n * LANES);
      *to = shares ? *to * shares[r] + sum[r][n] : sum[r][n];
    }
}

/* `corner` over all rows and lanes. */
INLINE void corners_of(const int pairs, long rows, long lanes, const char *a, long a_row,
                       const words *b, long apart, long count, float *c, long c_row,
                       const float *shares) {
#define CORNER(LANES_OF)                                                                           \
  for (; n + LANES_OF <= lanes; n += LANES_OF)                                                     \
    for (long r = 0; r < rows; r += CORNER_ROWS)                                                   \
      corner(pairs, LANES_OF, a + r * a_row, a_row, b + n * apart, apart, count,                   \
             c + r * c_row + n * LANES, c_row, shares ? shares + r : 0);
  long n = 0;
  CORNER(CORNER_LANES) CORNER(1)
}

#ifdef __AMX_BF16__
/* The same by whole tiles: rows are multiples of 16, and so are words. */
static void whole_tiles(void) {
  Tiles shape = {1};
  for (int i = 0; i < 8; i++) shape.bytes[i] = 64, shape.rows[i] = 16;
  _tile_loadconfig(&shape);
}

INLINE void corners_in_tiles(long rows, long lanes, const char *a, long a_row, const words *b,
                             long apart, long count, float *c, long c_row, const float *shares) {
  for (long r = 0; shares && r < rows; r++)
    for (long n = 0; shares[r] != 1 && n < lanes * LANES; n += LANES)
      *(floats *)(c + r * c_row + n) *= shares[r];
  SEEN;
  for (long n = 0; n < lanes; n++)
    for (long r = 0; r < rows; r += 16) {
      float *to = c + r * c_row + n * LANES;
      if (shares) _tile_loadd(0, to, c_row * 4);
      else _tile_zero(0);
      for (long k = 0; k < count; k += 16) {
        _tile_loadd(4, a + r * a_row + 4 * k, a_row);
        _tile_loadd(5, b + n * apart + k, 64);
        _tile_dpbf16ps(0, 4, 5);
      }
      _tile_stored(0, to, c_row * 4);
    }
  SEEN;
}
#endif

/* How rows of a prompt attend. */
enum { FLOATS, PAIRS, TILES };
static int how(const Model *m) {
  if (!in_pairs(m)) return FLOATS;
#ifdef __AMX_BF16__
  if (may_use_tiles && m->dim % 32 == 0) return TILES;
#endif
  return PAIRS;
}

INLINE void corners(const int how, long rows, long lanes, const char *a, long a_row, const words *b,
                    long apart, long count, float *c, long c_row, const float *shares) {
#ifdef __AMX_BF16__
  if (how == TILES) {
    corners_in_tiles(rows, lanes, a, a_row, b, apart, count, c, c_row, shares);
    return;
  }
#endif
  corners_of(how == PAIRS, rows, lanes, a, a_row, b, apart, count, c, c_row, shares);
}

/* What a row has seen of its keys so far. */
typedef struct {
  float most[TILE_ROWS], shares[TILE_ROWS]; /* the largest score; what counts of what was found */
  floats sums[TILE_ROWS];                   /* of weights, to be added up */
} Seen;

INLINE float greatest(floats value) {
#ifdef __AVX512F__
  return _mm512_reduce_max_ps((__m512)value);
#else
  for (int half = LANES / 2; half; half /= 2)
    for (int i = 0; i < half; i++)
      if (value[i + half] > value[i]) value[i] = value[i + half];
  return value[0];
#endif
}

/* Makes weights of scores in place, or as bfloat16 in pairs, and updates what rows have seen. */
INLINE void weigh(const int pairs, float (*scores)[KEYS], long rows, long keys, float scale,
                  Seen *seen) {
  for (long r = 0; r < rows; r++) {
    float *own = scores[r];
    floats largest = (floats){0} - INFINITY, sum = {0};
    for (long k = 0; k < keys; k += LANES) largest = larger(largest, *(floats *)(own + k));
    const float before = seen->most[r], now = greatest(largest) * scale;
    const float most = now > before ? now : before, base = most > -INFINITY ? most : 0;
    for (long k = 0; k < keys; k += LANES) {
      const floats weight = exponential(*(floats *)(own + k) * scale - base);
      sum += weight;
#if BFLOAT16
      if (pairs) {
        *(halves *)((uint16_t *)own + k) = (halves)_mm512_cvtneps_pbh((__m512)weight);
        continue;
      }
#endif
      *(floats *)(own + k) = weight;
    }
    const floats share = exponential((floats){0} + (before - base));
    seen->shares[r] = share[0], seen->most[r] = most;
    seen->sums[r] = seen->sums[r] * share + sum;
  }
}

/* Scales scores, and holds them below a cap. */
static void cap_all(float (*scores)[KEYS], long rows, long keys, const Layer *l) {
  for (long r = 0; r < rows; r++)
    for (long k = 0; k < keys; k += LANES)
      *(floats *)(scores[r] + k) = capped(*(floats *)(scores[r] + k) * l->scale, l->cap);
}

/* Whether rules hide a block from all rows of a tile. */
static int is_hidden(const Step *s, const Tile *t, long first, long keys) {
  if (t->members || !s->rules || !s->rules[t->row]) return 0;
  for (long r = 0; r < t->rows; r++)
    if (memchr(s->rules[t->row + r] + first, 1, keys)) return 0;
  return 1;
}

/* Hides what rows do not see of a block. */
static void hide(const Layer *l, const Step *s, const Tile *t, long first, long keys,
                 float (*scores)[KEYS]) {
  const int32_t *entries = s->entries + s->starts[row_of(t, 0)];
  int32_t places[KEYS], numbers[KEYS];
  for (long k = 0; k < keys; k++) {
    const long n = first + k < t->keys ? first + k : first;
    numbers[k] = first + k;
    places[k] = s->positions[entries[n / s->page_size] * s->page_size + n % s->page_size];
  }
  for (long r = 0; r < t->rows; r++) {
    const long row = row_of(t, r);
    const int32_t count = s->keys[row], own = s->positions[s->slots[row]];
    const int32_t oldest = l->window && l->window <= own ? own - l->window : -1;
    const uint8_t *rule = s->rules ? s->rules[row] : 0;
    for (long k = 0; k < keys; k += LANES) {
      ints hidden = (*(ints *)(numbers + k) >= count) | (*(ints *)(places + k) <= oldest);
      if (rule && first + k < count)
        hidden |= __builtin_convertvector(*(const bytes *)(rule + first + k), ints) == 0;
      floats *at = (floats *)(scores[r] + k);
      *at = chosen(hidden, *at, (floats){0} - INFINITY);
    }
  }
}

/* What one or some query heads of a tile's rows find: into `found`, or, where they have more keys
   than those of the tile, as the first of their chunks. */
INLINE void attend_tile(const int how, const Model *m, const Layer *l, const Step *s,
                        const Tile *t, const char *queries, long stride, long head,
                        const char *packed, void *found, float *parts, const long *chunks) {
  const int pairs = how != FLOATS, tall = how == TILES ? 16 : CORNER_ROWS;
  const long dim = m->dim, each = m->bfloat16 ? 2 : 4, words_of = pairs ? dim / 2 : dim;
  const long rows = (t->rows + tall - 1) / tall * tall;
  const long all = t->keys, size = block_size(m);
  _Alignas(64) uint32_t own[TILE_ROWS * 256];
  _Alignas(64) float scores[TILE_ROWS][KEYS], values[TILE_ROWS * 256];
  Seen seen;
#ifdef __AMX_BF16__
  if (how == TILES) whole_tiles();
#endif
  packed += t->packed + head / (m->heads / m->kv_heads) * 2 * size;
  for (long r = 0; r < rows; r++) {
    const long own_head = head + r % t->heads;
    const char *from = queries + row_of(t, r < t->rows ? r : 0) * stride + own_head * dim * each;
    for (long w = 0; w < words_of; w++)
      own[r * words_of + w] = pairs ? ((const uint32_t *)from)[w] : number_at(m, from, w);
    for (long d = 0; d < dim; d++) values[r * dim + d] = 0;
    seen.most[r] = -INFINITY, seen.sums[r] = (floats){0};
  }
  for (long first = 0; first < all; first += KEYS, packed += m->kv_heads * 2 * size) {
    const long left = all - first < KEYS ? all - first : KEYS;
    const long keys = (left + 2 * LANES - 1) / (2 * LANES) * 2 * LANES;
    if (is_hidden(s, t, first, left)) continue;
    corners(how, rows, keys / LANES, (const char *)own, words_of * 4, (const words *)packed,
            words_of, words_of, scores[0], KEYS, 0);
    if (l->cap) cap_all(scores, rows, keys, l);
    const long first_row = row_of(t, 0);
    const int ruled = s->rules && s->rules[first_row];
    if (l->window || ruled || first + keys > s->keys[first_row]) hide(l, s, t, first, keys, scores);
    weigh(pairs, scores, rows, keys, l->cap ? 1 : l->scale, &seen);
    const long count = pairs ? KEYS / 2 : KEYS;
    corners(how, rows, dim / LANES, (const char *)scores, KEYS * 4, (const words *)(packed + size),
            count, pairs ? keys / 2 : keys, values, dim, seen.shares);
  }
  const long group = m->heads / m->kv_heads, part = group * (dim + 2);
  for (long r = 0; r < t->rows; r++) {
    const float sum = total(seen.sums[r]);
    if (t->members) {
      float *own = parts + (chunks[row_of(t, r)] * m->kv_heads + head / group) * part;
      memcpy(own + r % group * dim, values + r * dim, dim * 4);
      own += group * dim + r % group;
      own[0] = seen.most[r], own[group] = sum;
      continue;
    }
    const float sink = l->sinks ? l->sinks[head + r % t->heads] : -INFINITY;
    const float most = sink > seen.most[r] ? sink : seen.most[r];
    float share = 1, all_of = sum;
    if (sink > -INFINITY) {
      share = exponential((floats){0} + (seen.most[r] - most))[0];
      all_of = sum * share + exponential((floats){0} + (sink - most))[0];
    }
    for (long d = 0; d < dim; d += LANES)
      save(found, (t->row + r) * m->heads * dim + head * dim + d,
           all_of > 0 ? *(floats *)(values + r * dim + d) * share / all_of : (floats){0},
           m->bfloat16);
  }
}

static void normalize(const float *x, void *found, const float *weight, long size, float epsilon,
                      int bfloat16) {
  floats squares = {0};
  for (long i = 0; i < size; i += LANES) {
    floats value = *(const floats *)(x + i);
    squares += value * value;
  }
  const float scale = 1.0f / sqrtf(total(squares) / size + epsilon);
  for (long i = 0; i < size; i += LANES)
    save(found, i, *(const floats *)(x + i) * scale * *(const floats *)(weight + i), bfloat16);
}

/* Norms and turns a row's queries and keys, and stores keys and values in its slot. What is placed
   is rounded to where it was, side by side. */
static void place(const Model *m, const Layer *l, const Step *s, float *qkv, long row) {
  const long dim = m->dim, each = m->bfloat16 ? 2 : 4, size = m->kv_heads * dim * each;
  for (long h = 0; h < m->heads + 2 * m->kv_heads; h++) {
    const int is_value = h >= m->heads + m->kv_heads;
    const float *norm = is_value ? 0 : l->norms[h < m->heads ? QUERY : KEY];
    const Angles *a = s->angles + l->rope;
    float old[256], cosines[256], sines[256];
    const long turned = is_value || l->rope < 0 ? 0 : a->turned, half = turned / 2;
    memcpy(old, qkv + h * dim, dim * 4);
    if (norm) normalize(old, old, norm, dim, m->epsilon, 0);
    for (long i = 0; i < turned; i++) {
      const long at = row * a->stride + i;
      const long other = m->interleaved ? i ^ 1 : i < half ? i + half : i - half;
      if (m->bfloat16) {
        uint32_t c = (uint32_t)((const uint16_t *)a->cosines)[at] << 16;
        uint32_t n = (uint32_t)((const uint16_t *)a->sines)[at] << 16;
        cosines[i] = *(float *)&c, sines[i] = *(float *)&n;
      } else {
        cosines[i] = ((const float *)a->cosines)[at], sines[i] = ((const float *)a->sines)[at];
      }
      sines[i] *= old[other];
    }
    for (long i = 0; i < turned; i++) old[i] = old[i] * cosines[i] + sines[i];
    for (long i = 0; i < dim; i += LANES) save(qkv, h * dim + i, *(floats *)(old + i), m->bfloat16);
  }
  memcpy((char *)l->pool + s->slots[row] * 2 * size, (char *)qkv + m->heads * dim * each, 2 * size);
}

/* Adds low ranks of an input to some vectors of what a product has made of it. */
INLINE void add_ranks(const int count, const float *ranks, long some, const void *up, long from,
                      long at, void *y, long out, const int bfloat16, const int rounds) {
  floats sum[4];
  UNROLL for (int i = 0; i < count; i++) sum[i] = load(y, at + i * LANES, rounds);
  for (long r = 0; r < some; r++)
    UNROLL for (int i = 0; i < count; i++)
      sum[i] += ranks[r] * load(up, (from + r) * out + at + i * LANES, bfloat16);
  UNROLL for (int i = 0; i < count; i++) save(y, at + i * LANES, sum[i], rounds);
}

INLINE void add_low_rank(const LowRank *a, const void *x, long in, void *y, long out,
                         const int bfloat16, const int rounds) {
  float ranks[RANKS];
  for (long first = 0; first < a->rank; first += RANKS) {
    const long some = a->rank - first < RANKS ? a->rank - first : RANKS;
    for (long r = 0; r < some; r += LANES) {
      floats sum[4] = {{0}};
      for (long i = 0; i < in; i += LANES) {
        const floats own = load(x, i, bfloat16);
        UNROLL16 for (int j = 0; j < LANES; j++)
          sum[j % 4] += own[j] * load(a->down, (i + j) * a->rank + first + r, bfloat16);
      }
      *(floats *)(ranks + r) = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    }
    long at = 0;
    for (; at + 4 * LANES <= out; at += 4 * LANES)
      add_ranks(4, ranks, some, a->up, first, at, y, out, bfloat16, rounds);
    for (; at < out; at += LANES)
      add_ranks(1, ranks, some, a->up, first, at, y, out, bfloat16, rounds);
  }
}

/* Adds what a row's adapter makes of a product's input (LoRA, Hu et al. 2021). */
static void adapt(const Model *m, const Layer *l, const Step *s, int product, long row,
                  const void *x, long in, void *y, long out) {
  if (!s->owners || s->owners[row] < 0) return;
  const LowRank *a =
    s->low_ranks + (s->owners[row] * m->count + (l - m->layers)) * PRODUCTS + product;
  if (!a->rank) return;
  if (l->products[product].parts->rounds) add_low_rank(a, x, in, y, out, 1, 1);
  else if (m->bfloat16) add_low_rank(a, x, in, y, out, 1, 0);
  else add_low_rank(a, x, in, y, out, 0, 0);
}

static void gate(const void *both, void *found, long inner, int bfloat16) {
  for (long i = 0; i < inner; i += LANES) {
    floats gate = load(both, i, bfloat16), up = load(both, inner + i, bfloat16);
    save(found, i, gate / (1.0f + exponential(-gate)) * up, bfloat16);
  }
}

/* What products read of their inputs, made by `prepare`. */
typedef struct {
  char *of;
} Inputs;

static void ready(const Products *w, const Inputs *inputs, const void *x, long row, long rows) {
  char *at = inputs->of;
  for (long i = 0; i < w->count; at += inputs_size(w->parts + i++, rows))
    prepare(w->parts + i, x, row, rows, at);
}

static void product(Team *team, const Products *w, const Inputs *inputs, const void *x,
                    const float *residual, void *y, long rows) {
  long pieces = 0;
  for (long i = 0; i < w->count; i++) pieces += (blocks_of(w->parts + i) + PIECE - 1) / PIECE;
  const long parts = pieces * ((rows - 1) / part_rows(rows) + 1);
  for (long part; (part = claim_near(team, parts)) >= 0;) {
    const char *at = inputs->of;
    long i = 0, count, left = part % pieces;
    for (;; i++) {
      count = blocks_of(w->parts + i);
      const long own = (count + PIECE - 1) / PIECE;
      if (left < own) break;
      left -= own;
      at += inputs_size(w->parts + i, rows);
    }
    Product p = prepared(w->parts[i], x, at, rows);
    const long offset = (long)p.y;
    p.residual = residual ? (const char *)residual + offset : 0, p.y = (char *)y + offset;
    const long block = left * PIECE > count - PIECE ? count - PIECE : left * PIECE;
    part_of_rows(&p, part / pieces, block, rows);
  }
}

typedef struct {
  char *normed, *qkv, *mixed, *gate_up, *inner;
  float *x, *parts;
  long *chunks; /* [rows + 1]: where those of each row begin */
  long longest; /* chunks of a row */
  Tile *tiles;
  Block *blocks;
  char *packed;
  long tiled, blocked; /* how many there are */
  long *members;       /* rows that share keys, tile by tile */
  Inputs inputs;
  long bytes;
} Room;

static long inputs_of(const Products *w, long rows) {
  long found = 0;
  for (long i = 0; i < w->count; i++) found += inputs_size(w->parts + i, rows);
  return found;
}

/* Rows of a sequence from one on; all lie side by side. */
static long rows_of(const Step *s, long row) {
  long count = 1;
  while (row + count < s->rows && s->starts[row + count] == s->starts[row]) count++;
  return count;
}

/* Rows that have a leader, in tiles with the packed keys that they share. */
static void lay_out_shared(const Model *m, const Step *s, Room *r) {
  const long block = m->kv_heads * 2 * block_size(m), heads = m->heads / m->kv_heads;
  long placed = 0;
  for (long row = 0; s->shared && row < s->rows; row++) {
    if (!s->shared[row] || s->leaders[row] != row) continue;
    const long packed = r->blocked * block;
    for (long k = 0; k < s->shared[row]; k += KEYS, r->blocked++)
      if (r->blocks) r->blocks[r->blocked] = (Block){row, k, r->blocked * block};
    for (long i = row, rows = 0; i < s->rows; i++) {
      if (!s->shared[i] || s->leaders[i] != row) continue;
      if (rows++ % (TILE_ROWS / heads) == 0) {
        if (r->tiles)
          r->tiles[r->tiled] = (Tile){r->members + placed, heads, 0, 0, s->shared[row], packed};
        r->tiled++;
      }
      if (r->tiles) r->tiles[r->tiled - 1].rows += heads, r->members[placed] = i;
      placed++;
    }
  }
}

/* Chunks, tiles and blocks of keys of all rows, written where there is room, and how many tiles and
   blocks there are. */
static long laid_out(const Model *m, const Step *s, Room *r) {
  long chunks = 0;
  const long block = m->kv_heads * 2 * block_size(m);
  r->tiled = r->blocked = 0;
  for (long row = 0, count; row < s->rows; row += count) {
    count = rows_of(s, row);
    if (count <= s->most_alone) {
      for (long i = row; i < row + count; i++) {
        const long own = chunks_of(s, i);
        if (r->chunks) r->chunks[i] = chunks;
        if (own > r->longest) r->longest = own;
        chunks += own;
      }
      continue;
    }
    const long packed = r->blocked * block, end = row + count;
    for (long i = row; i < end; i += TILE_ROWS, r->tiled++) {
      const long last = end - i < TILE_ROWS ? end : i + TILE_ROWS;
      if (r->tiles) r->tiles[r->tiled] = (Tile){0, 1, i, last - i, s->keys[last - 1], packed};
    }
    for (long i = row; r->chunks && i < end; i++) r->chunks[i] = chunks;
    for (long k = 0; k < s->keys[end - 1]; k += KEYS, r->blocked++)
      if (r->blocks) r->blocks[r->blocked] = (Block){end - 1, k, r->blocked * block};
  }
  if (r->chunks) r->chunks[s->rows] = chunks;
  lay_out_shared(m, s, r);
  return chunks;
}

/* How many of the first keys of two rows are the same, in chunks. */
static long common(const Step *s, long one, long other) {
  const int32_t *a = s->entries + s->starts[one], *b = s->entries + s->starts[other];
  const long keys = s->keys[one] < s->keys[other] ? s->keys[one] : s->keys[other];
  long same = 0;
  while (same * s->page_size < keys && a[same] == b[same]) same++;
  return (same * s->page_size < keys ? same * s->page_size : keys) / KEYS;
}

/* Finds rows that attend alone, to all their keys, and begin with the same ones: writes `shared`
   and `leaders` of a step, and returns whether there are any. Each group is the one of which most
   keys need not be read again. */
int find_shared(const Model *m, const Step *s, int64_t *shared, int64_t *leaders) {
  long chunks[MOST_SHARING], rows[MOST_SHARING];
  int any = 0;
  if (m->heads / m->kv_heads > TILE_ROWS) return 0;
  for (long row = 0, count; row < s->rows; row += count) { /* -1: it may share */
    count = rows_of(s, row);
    for (long i = row; i < row + count; i++)
      shared[i] = count <= s->most_alone && s->keys[i] >= KEYS && !(s->rules && s->rules[i]) ? -1
                                                                                             : 0;
  }
  for (long row = 0; row < s->rows; row++) {
    if (shared[row] >= 0) continue;
    long some = 0, best = 0, most = 0;
    for (long i = row; i < s->rows && some < MOST_SHARING; i++) { /* most in common first */
      const long own = shared[i] < 0 ? common(s, row, i) : 0;
      if (!own) continue;
      long at = some++;
      for (; at && chunks[at - 1] < own; at--) chunks[at] = chunks[at - 1], rows[at] = rows[at - 1];
      chunks[at] = own, rows[at] = i;
    }
    for (long i = FEWEST_SHARING - 1; i < some; i++)
      if (i * chunks[i] > most) most = i * chunks[i], best = i + 1;
    shared[row] = 0;
    for (long i = 0; i < best; i++)
      shared[rows[i]] = chunks[best - 1] * KEYS, leaders[rows[i]] = row, any = 1;
  }
  return any;
}

static Room rooms(const Model *m, const Step *s) {
  const long each = m->bfloat16 ? 2 : 4, rows = s->rows, heads = m->heads * m->dim;
  long most = 0;
  for (long i = 0; i < m->count; i++)
    for (int j = 0; j < PRODUCTS; j++) {
      const long own = inputs_of(m->layers[i].products + j, rows);
      if (own > most) most = own;
    }
  Room room = {0};
  const long chunks = laid_out(m, s, &room);
  long at = 0;
#define PLACE(NAME, SIZE) room.NAME = (void *)(s->room + at), at += ((SIZE) + 63) / 64 * 64
  PLACE(normed, rows * m->hidden * each);
  if (m->layers) PLACE(qkv, rows * (heads + 2 * m->kv_heads * m->dim) * 4);
  if (m->layers) PLACE(mixed, rows * heads * each);
  PLACE(x, rows * m->hidden * 4);
  PLACE(gate_up, rows * 2 * m->inner * each);
  PLACE(inner, rows * m->inner * each);
  PLACE(parts, chunks * m->kv_heads * (m->heads / m->kv_heads) * (m->dim + 2) * 4);
  PLACE(chunks, (rows + 1) * sizeof(long));
  PLACE(tiles, room.tiled * sizeof(Tile));
  if (s->shared) PLACE(members, rows * sizeof(long));
  PLACE(blocks, room.blocked * sizeof(Block));
  PLACE(packed, room.blocked * m->kv_heads * 2 * block_size(m));
  PLACE(inputs.of, most);
  room.bytes = at;
  return room;
}

/* Bytes that `step` needs as `room`; where in it the queries, keys and values are, and what the
   queries find. */
long step_room(const Model *m, const Step *s, long *qkv, long *mixed) {
  const Room room = rooms(m, s);
  *qkv = room.qkv - s->room, *mixed = room.mixed - s->room;
  return room.bytes;
}

static int is_wanted(const Step *s, const Tile *t) {
  if (t->members) return 1;
  for (long i = 0; i < s->outputs; i++)
    if (s->wanted[i] >= t->row && s->wanted[i] < t->row + t->rows) return 1;
  return 0;
}

/* A layer up to its queries, keys and values. */
static void before_attention(Team *team, const Model *m, const Layer *l, const Step *s,
                             const Room *r) {
  const long each = m->bfloat16 ? 2 : 4, rows = s->rows, hidden = m->hidden * each;
  const long qkv = (m->heads + 2 * m->kv_heads) * m->dim;
  EACH_ROW(row, rows) {
    normalize(s->x + row * m->hidden, r->normed + row * hidden, l->norms[ATTENTION], m->hidden,
              m->epsilon, m->bfloat16);
    ready(l->products + QUERY_KEY_VALUE, &r->inputs, r->normed, row, rows);
  }
  meet(team);
  product(team, l->products + QUERY_KEY_VALUE, &r->inputs, r->normed, 0, r->qkv, rows);
  meet(team);
  EACH_ROW(row, rows) {
    float *own = (float *)r->qkv + row * qkv;
    adapt(m, l, s, QUERY_KEY_VALUE, row, r->normed + row * hidden, m->hidden, own, qkv);
    place(m, l, s, own, row);
  }
  meet(team);
}

/* What queries, rows `qkv` bytes apart, find: of tiles, if `fewer` of those that are wanted alone, and
   of other rows in chunks, which are to be joined. */
static void attend_all(Team *team, const Model *m, const Layer *l, const Step *s, const Room *r,
                       long qkv, int fewer) {
  const long rows = s->rows, size = m->heads / m->kv_heads * (m->dim + 2);
  if (r->tiled) {
    EACH(part, r->blocked * m->kv_heads) {
      const Block *b = r->blocks + part / m->kv_heads;
      const long head = part % m->kv_heads;
      pack_keys(m, l, s, b, head, r->packed + b->packed + head * 2 * block_size(m));
    }
    meet(team);
    EACH(part, r->tiled * m->heads) { /* the last first, which see most */
      const Tile *t = r->tiles + r->tiled - 1 - part / m->heads;
      const long head = part % m->heads;
      if (head % t->heads || (fewer && !is_wanted(s, t))) continue;
#define ATTEND_BY(HOW)                                                                             \
  if (how(m) == HOW)                                                                               \
    attend_tile(HOW, m, l, s, t, r->qkv, qkv, head, r->packed, r->mixed, r->parts, r->chunks);
      ATTEND_BY(FLOATS) ATTEND_BY(PAIRS) ATTEND_BY(TILES)
    }
    meet(team);
  }
  /* The first chunks of all rows first: those that some share are in a cache then. */
  const long split = r->chunks[rows] < 4 * team->threads ? 1 : m->kv_heads;
  EACH(part, r->longest * rows * (m->kv_heads / split)) {
    const long head = part * split % m->kv_heads, which = part * split / m->kv_heads;
    const long row = which % rows, chunk = which / rows, at = r->chunks[row] + chunk;
    if (at < r->chunks[row + 1] && (chunk || !shared_of(s, row)))
      attend(m, l, s, r->qkv + row * qkv, row, chunk, head, head + split,
             r->parts + (at * m->kv_heads + head) * size, 0);
  }
  meet(team);
}

/* Joins what a row has found in chunks. */
static void join_row(const Model *m, const Layer *l, const Room *r, long row) {
  const long chunks = r->chunks[row + 1] - r->chunks[row];
  const long size = m->heads / m->kv_heads * (m->dim + 2);
  if (chunks) join(m, l, r->parts + r->chunks[row] * m->kv_heads * size, chunks, r->mixed, row);
}

/* The rest of it; if it is the `last`, only for rows that are wanted. */
static void from_attention(Team *team, const Model *m, const Layer *l, const Step *s, const Room *r,
                           int last) {
  const long each = m->bfloat16 ? 2 : 4;
  long rows = s->rows;
  const int fewer = last && s->outputs < rows;
  const long hidden = m->hidden * each, heads = m->heads * m->dim * each;
  const long qkv = (m->heads + 2 * m->kv_heads) * m->dim * 4, inner = m->inner * each;
  attend_all(team, m, l, s, r, qkv, fewer);
  EACH_ROW(row, rows) {
    join_row(m, l, r, row);
    if (!fewer) ready(l->products + OUTPUT, &r->inputs, r->mixed, row, rows);
  }
  if (fewer) {
    meet(team);
    EACH(one, 1)
      for (long i = 0; i < s->outputs; i++) {
        memmove(r->mixed + i * heads, r->mixed + s->wanted[i] * heads, heads);
        memmove(s->x + i * m->hidden, s->x + s->wanted[i] * m->hidden, m->hidden * 4);
      }
    meet(team);
    rows = s->outputs;
    if (!rows) return; /* keys and values were all that was wanted */
    EACH(row, rows) ready(l->products + OUTPUT, &r->inputs, r->mixed, row, rows);
  }
  meet(team);
  product(team, l->products + OUTPUT, &r->inputs, r->mixed, s->x, r->x, rows);
  meet(team);
  /* Numbers of rows that go on are those of the outputs. */
#define ADAPT(PRODUCT, X, IN, Y, OUT)                                                              \
  adapt(m, l, s, PRODUCT, fewer ? s->wanted[row] : row, (X) + row * (IN) * each, IN, Y, OUT)
  EACH_ROW(row, rows) {
    ADAPT(OUTPUT, r->mixed, m->heads * m->dim, r->x + row * m->hidden, m->hidden);
    normalize(r->x + row * m->hidden, r->normed + row * hidden, l->norms[MLP], m->hidden,
              m->epsilon, m->bfloat16);
    ready(l->products + GATE_UP, &r->inputs, r->normed, row, rows);
  }
  meet(team);
  product(team, l->products + GATE_UP, &r->inputs, r->normed, 0, r->gate_up, rows);
  meet(team);
  EACH_ROW(row, rows) {
    ADAPT(GATE_UP, r->normed, m->hidden, r->gate_up + row * 2 * inner, 2 * m->inner);
    gate(r->gate_up + row * 2 * inner, r->inner + row * inner, m->inner, m->bfloat16);
    ready(l->products + DOWN, &r->inputs, r->inner, row, rows);
  }
  meet(team);
  product(team, l->products + DOWN, &r->inputs, r->inner, r->x, s->x, rows);
  meet(team);
  if (!s->owners) return;
  EACH_ROW(row, rows) ADAPT(DOWN, r->inner, m->inner, s->x + row * m->hidden, m->hidden);
  meet(team);
}

/* Runs some halves of layers, of which the second begin with the attention; behind the last one the
   norm. */
void step(const Model *m, const Step *s, long first, long end) {
  Room room = rooms(m, s);
  const long hidden = m->hidden * (m->bfloat16 ? 2 : 4);
  Team whole = {0};
  laid_out(m, s, &room);
#pragma omp parallel
  {
    Before before;
    Team *team = gathered(&whole, &before);
    for (long i = first; i < end; i++) {
      const Layer *l = m->layers + i / 2;
      if (i % 2) from_attention(team, m, l, s, &room, i / 2 == m->count - 1);
      else before_attention(team, m, l, s, &room);
    }
    if (end == 2 * m->count) EACH(row, s->outputs)
      normalize(s->x + row * m->hidden, (char *)s->found + row * hidden, m->norm, m->hidden,
                m->epsilon, m->bfloat16);
    finish(&before);
  }
}

/* What the queries of a layer find, rows of which are `stride` bytes apart: `[rows, heads, dim]`. The
   model has no layers, and the step has nothing but its rows. */
void attend_rows(const Model *m, const Layer *l, const Step *s, const void *queries, long stride,
                 void *found) {
  Room room = rooms(m, s);
  Team whole = {0};
  laid_out(m, s, &room);
  room.qkv = (void *)queries, room.mixed = found;
#pragma omp parallel
  {
    Before before;
    Team *team = gathered(&whole, &before);
    attend_all(team, m, l, s, &room, stride, 0);
    EACH_ROW(row, s->rows) join_row(m, l, &room, row);
    finish(&before);
  }
}

/* A single row's context, of which a program chooses. */
typedef struct {
  const int32_t *entries; /* pages of `page_size` slots, all full but for the last of `last` */
  const int32_t *positions;
  long count, page_size, last, slot; /* its own slot is in the last entry */
  const void *queries;               /* [heads, dim] */
  const uint8_t *kept;               /* [kept_heads, count]; the last entry is read in any case */
  long kept_heads;                   /* 1, key heads or query heads */
  void *found;                       /* [heads, dim] */
  float *weights;                    /* [heads, count], of entries of one slot; or none */
  char *room;
} Chosen;

typedef struct {
  int64_t *slots, *starts, *keys; /* [lists] */
  int32_t *entries, *places;      /* [lists, count]: what is read; where in the context it was */
  float *parts, *given;
  long bytes;
} ChosenRoom;

static ChosenRoom chosen_room(const Model *m, const Chosen *c) {
  const long lists = m->kv_heads, chunks = (c->count * c->page_size + KEYS - 1) / KEYS;
  ChosenRoom room = {0};
  long at = 0;
#define PLACE_CHOSEN(NAME, SIZE)                                                                   \
  room.NAME = (void *)(c->room + at), at += ((SIZE) + 63) / 64 * 64
  PLACE_CHOSEN(slots, lists * 8);
  PLACE_CHOSEN(starts, lists * 8);
  PLACE_CHOSEN(keys, lists * 8);
  PLACE_CHOSEN(entries, lists * c->count * 4);
  PLACE_CHOSEN(places, lists * c->count * 4);
  PLACE_CHOSEN(parts, chunks * m->heads * (m->dim + 2) * 4);
  if (c->weights) PLACE_CHOSEN(given, chunks * m->heads * KEYS * 4);
  room.bytes = at;
  return room;
}

/* Bytes that `attend_row` needs as `room`. */
long attend_room(const Model *m, const Chosen *c) { return chosen_room(m, c).bytes; }

/* What is kept for one of some `[rows, count]`, and the last: how many. */
static long listed(const Chosen *c, const uint8_t *kept, long rows, int32_t *entries,
                   int32_t *places) {
  long found = 0;
  for (long i = 0; i < c->count; i++) {
    uint8_t any = i == c->count - 1;
    for (long row = 0; row < rows; row++) any |= kept[row * c->count + i];
    entries[found] = c->entries[i], places[found] = i;
    found += any != 0;
  }
  return found;
}

/* Writes the weights that a query head gives in all: those of its chunks, each by its share. */
static void share_out(const Model *m, const Chosen *c, const ChosenRoom *r, const Step *s,
                      long head, long lists) {
  const long group = m->heads / m->kv_heads, size = group * (m->dim + 2);
  const long kv = head / group, h = head % group, next = m->kv_heads * size;
  const long list = lists > 1 ? kv : 0, chunks = chunks_of(s, list);
  const float *most_of = r->parts + kv * size + group * m->dim + h;
  float most = -INFINITY, sum = 0, *weights = c->weights + head * c->count;
  memset(weights, 0, c->count * 4);
  for (long i = 0; i < chunks; i++) most = fmaxf(most, most_of[i * next]);
  if (most == -INFINITY) return;
#define SHARE(CHUNK) exponential((floats){0} + (most_of[(CHUNK) * next] - most))[0]
  for (long i = 0; i < chunks; i++) sum += SHARE(i) * most_of[i * next + group];
  for (long i = 0; i < chunks; i++) {
    const float share = SHARE(i) / sum;
    const float *given = r->given + ((i * m->kv_heads + kv) * group + h) * KEYS;
    const int32_t *places = r->places + list * c->count + i * KEYS;
    const long left = s->keys[list] - i * KEYS;
    for (long k = 0; k < KEYS && k < left; k++) weights[places[k]] = share * given[k];
  }
}

/* What the queries of a single row find in what is kept for them. Query heads that share a key head
   read what one of them keeps. */
void attend_row(const Model *m, const Layer *l, const Chosen *c) {
  const ChosenRoom r = chosen_room(m, c);
  const long lists = c->kept_heads > 1 ? m->kv_heads : 1, group = m->heads / m->kv_heads;
  const long size = group * (m->dim + 2), rows = c->kept_heads / lists;
  const Step s = {.slots = r.slots,
                  .starts = r.starts,
                  .keys = r.keys,
                  .entries = r.entries,
                  .positions = c->positions,
                  .page_size = c->page_size};
  long chunks = 0;
  for (long i = 0; i < lists; i++) {
    r.slots[i] = c->slot, r.starts[i] = i * c->count;
    const long own = listed(c, c->kept + i * rows * c->count, rows, r.entries + i * c->count,
                            r.places + i * c->count);
    r.keys[i] = (own - 1) * c->page_size + c->last;
    if (chunks_of(&s, i) > chunks) chunks = chunks_of(&s, i);
  }
  Team whole = {0};
#pragma omp parallel
  {
    Before before;
    Team *team = gathered(&whole, &before);
    /* All key heads at once if they read the same, and there is enough for all threads. */
    const long at_once = lists > 1 || chunks < 4 * team->threads ? 1 : m->kv_heads;
    EACH(part, chunks * m->kv_heads / at_once) {
      const long first = part * at_once, head = first % m->kv_heads, chunk = first / m->kv_heads;
      const long list = lists > 1 ? head : 0;
      float *own = r.parts + first * size;
      if (chunk < chunks_of(&s, list)) {
        attend(m, l, &s, c->queries, list, chunk, head, head + at_once, own,
               c->weights ? r.given + first * group * KEYS : 0);
      } else {
        for (long i = 0; i < size; i++) own[i] = 0;
        for (long h = 0; h < group; h++) own[group * m->dim + h] = -INFINITY;
      }
    }
    meet(team);
    if (c->weights) EACH(head, m->heads) share_out(m, c, &r, &s, head, lists);
    finish(&before);
  }
  join(m, l, r.parts, chunks, c->found, 0);
}

/* The most that scaled products with the keys of pages can be, `[heads, pages + 1]`, the last one
   minus infinity, of bounds `[pages of the pool, kv_heads, 2, dim]`: the least and the largest of
   each number. `room` is for two queries. */
void score_pages(const Model *m, const void *bounds, const int32_t *pages, long count,
                 const void *queries, float scale, float *found, void *room) {
  const long dim = m->dim, each = m->bfloat16 ? 2 : 4, group = m->heads / m->kv_heads;
  const long page = m->kv_heads * 2 * dim * each;
  for (long h = 0; h < m->heads; h++) {
    /* A number that is negative has its largest product with the least of the keys. */
    for (long d = 0; d < dim; d += LANES) {
      const floats own = load(queries, h * dim + d, m->bfloat16);
      save(room, 2 * h * dim + d, smaller(own, (floats){0}), m->bfloat16);
      save(room, (2 * h + 1) * dim + d, larger(own, (floats){0}), m->bfloat16);
    }
    found[h * (count + 1) + count] = -INFINITY;
  }
#pragma omp parallel
  {
    Before before;
    begin(&before);
#pragma omp for
    for (long first = 0; first < count; first += LANES) {
      const long some = count - first < LANES ? count - first : LANES;
      for (long h = 0; h < m->heads; h++) {
        const char *own[LANES], *query = (const char *)room + 2 * h * dim * each;
        for (long i = 0; i < LANES; i++)
          own[i] = (const char *)bounds + pages[first + (i < some ? i : 0)] * page +
                   h / group * 2 * dim * each;
        floats score = m->bfloat16 ? scores_of(query, own, 2 * dim, 1)
                                   : scores_of(query, own, 2 * dim, 0);
        score *= scale;
        memcpy(found + h * (count + 1) + first, &score, some * 4);
      }
    }
    finish(&before);
  }
}
