/* Products with weights of 4 or 8 bits, in groups of inputs with a scale and a least value each, or
   of 16, which are bfloat16 as they are.

   Sixteen outputs are a block. Of each of its groups a block has 16 scales and 16 least values
   (float16 or float32), then words of 32 bits, 16 side by side, one for each output. A word holds
   inputs in pairs, the even ones in its lower half, the odd ones in its upper half, lowest bits
   first: a shift gives the 16 bits of a pair, which bfloat16 products take, and one more the other
   of it. A word of two bfloat16 is such a pair; their groups have no scales.

   A lane is an output, so nothing is summed across lanes. What an output is of a row is summed in
   one order: the inputs of a group, then the groups. It does not depend on the other rows. */
#ifdef __AVX512F__
#include <immintrin.h>
#endif
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define LANES 16
#define ROWS 6 /* of a tile, at most */
#define AHEAD 1024 /* bytes: of few rows a product takes as long as its weights come from memory */
typedef float floats __attribute__((vector_size(64), aligned(4)));
typedef uint32_t words __attribute__((vector_size(64), aligned(4)));
typedef int32_t ints __attribute__((vector_size(64), aligned(4)));
typedef uint16_t halves __attribute__((vector_size(32), aligned(2)));
#define INLINE static inline __attribute__((always_inline))

typedef struct {
  const uint8_t *packed;
  const void *x;        /* [rows, in] float32, or bfloat16 for the variant that multiplies those */
  const float *x_sums;  /* [groups, rows] */
  const float *bias;    /* [out], or none */
  const void *residual; /* like y, or none */
  void *y;              /* [rows, y_stride] */
  long rows, in, out, group, y_stride;
  int bits, half;       /* of a weight; whether scales are float16 */
  int bfloat16, rounds; /* whether x is; whether y, and so the residual, are */
} Product;

INLINE words widened(const void *from) {
  return __builtin_convertvector(*(const halves *)from, words);
}

/* float16 to float32: the exponent is 112 less than it would be, also of the smallest. */
INLINE floats from_half(const void *from) {
  words stored = widened(from), size = (stored & 0x7fff) << 13;
  floats found = *(floats *)&size * 0x1p112f;
  words bits = *(words *)&found | (stored & 0x8000) << 16;
  return *(floats *)&bits;
}

INLINE floats from_bfloat16(const void *from) {
  words bits = widened(from) << 16;
  return *(floats *)&bits;
}

/* The nearest, the even one of two. */
INLINE halves to_bfloat16(floats value) {
  words bits = *(words *)&value;
  words rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  words wrong = (words)(value != value);
  return __builtin_convertvector((rounded & ~wrong) | (wrong & 0x7fc0), halves);
}

/* Lanes are added by halves. */
INLINE float total(floats value) {
#ifdef __AVX512F__
  return _mm512_reduce_add_ps((__m512)value);
#else
  for (int half = LANES / 2; half; half /= 2)
    for (int i = 0; i < half; i++) value[i] += value[i + half];
  return value[0];
#endif
}

INLINE floats scale_of(const uint8_t *at, int half) {
  return half ? from_half(at) : *(const floats *)at;
}

/* Bytes of the scales and least values of a block's group. */
INLINE long head_size(const Product *p) {
  return p->bits == 16 ? 0 : 2 * LANES * (p->half ? 2 : 4);
}

INLINE long group_size(const Product *p) { return head_size(p) + p->group * p->bits / 8 * LANES; }

/* Four at least: a piece. */
static long blocks_of(const Product *p) {
  return p->out > 3 * LANES ? (p->out + LANES - 1) / LANES : 4;
}

INLINE void put(const Product *p, long at, long block, floats sum) {
  if (p->bias) sum += *(const floats *)(p->bias + block * LANES);
  if (p->rounds) {
    if (p->residual) sum += from_bfloat16((const uint16_t *)p->residual + at);
    *(halves *)((uint16_t *)p->y + at) = to_bfloat16(sum);
  } else {
    if (p->residual) sum += *(const floats *)((const float *)p->residual + at);
    *(floats *)((float *)p->y + at) = sum;
  }
}

INLINE void store(const Product *p, long row, long block, floats sum) {
  long at = row * p->y_stride + block * LANES, left = p->out - block * LANES;
  if (left < LANES) { /* a block whose last outputs are there to fill it, at most */
    Product last = *p;
    char beside[64], y[64];
    const int each = p->rounds ? 2 : 4;
    if (left <= 0) return;
    if (p->residual) memcpy(beside, (const char *)p->residual + at * each, left * each);
    if (p->bias) sum += *(const floats *)(p->bias + block * LANES);
    last.bias = 0, last.y = y, last.residual = p->residual ? beside : 0;
    put(&last, 0, 0, sum);
    memcpy((char *)p->y + at * each, y, left * each);
    return;
  }
  put(p, at, block, sum);
}

typedef struct {
  floats scale, least;
} Scales;

/* Of a block's group. */
INLINE Scales scales_of(const uint8_t *at, const Product *p) {
  return (Scales){scale_of(at, p->half), scale_of(at + head_size(p) / 2, p->half)};
}

/* A total and what a group adds to it; in this order, whatever the tile. */
INLINE floats added(floats total, const Scales *scales, floats sum, const Product *p, long group,
                    long row) {
  total += scales->scale * sum;
  return total + scales->least * p->x_sums[group * p->rows + row];
}

/* The `n`th number of words of 32 bits. */
INLINE floats number_of(words stored, int n, const int bits) {
  if (bits == 16) {
    words bits_of = n ? stored & 0xffff0000u : stored << 16;
    return *(floats *)&bits_of;
  }
  ints q = (ints)(stored >> ((n & 1) * 16 + (n >> 1) * bits) & ((1u << bits) - 1));
  return __builtin_convertvector(q, floats);
}

/* Each variant is this: what a word's inputs add to the sums of a tile of rows and blocks. */
#define UNROLL _Pragma("GCC unroll 8")
#define UNROLL16 _Pragma("GCC unroll 16")
#define TILE(NAME, ADD, SHAPES, LAST)                                                              \
  INLINE void NAME##_tile(const Product *p, long row, long block, const int rows,                  \
                          const int blocks, const int bits) {                                      \
    const long groups = p->in / p->group, size = group_size(p), each = p->group * bits / 32;       \
    const uint8_t *at[4];                                                                          \
    floats total[4][ROWS];                                                                         \
    UNROLL for (int b = 0; b < blocks; b++) at[b] = p->packed + (block + b) * groups * size;       \
    UNROLL for (int b = 0; b < blocks; b++)                                                        \
      UNROLL for (int r = 0; r < rows; r++) total[b][r] = (floats){0};                             \
    for (long g = 0; g < groups; g++) {                                                            \
      const long head = head_size(p);                                                              \
      floats sum[4][ROWS];                                                                         \
      UNROLL for (int b = 0; b < blocks; b++)                                                      \
        UNROLL for (int r = 0; r < rows; r++) sum[b][r] = (floats){0};                             \
      for (long w = 0; w < each; w++) {                                                            \
        const long k = g * p->group + w * (32 / bits);                                             \
        words stored[4];                                                                           \
        UNROLL for (int b = 0; b < blocks; b++) {                                                  \
          stored[b] = *(const words *)(at[b] + head + w * 64);                                     \
          __builtin_prefetch(at[b] + head + w * 64 + AHEAD);                                       \
        }                                                                                          \
        ADD                                                                                        \
      }                                                                                            \
      UNROLL for (int b = 0; b < blocks; b++) {                                                    \
        Scales scales = {0};                                                                       \
        if (bits < 16) scales = scales_of(at[b], p);                                               \
        UNROLL for (int r = 0; r < rows; r++)                                                      \
          total[b][r] = bits < 16 ? added(total[b][r], &scales, sum[b][r], p, g, row + r)          \
                                  : total[b][r] + sum[b][r];                                       \
        at[b] += size;                                                                             \
      }                                                                                            \
    }                                                                                              \
    UNROLL for (int b = 0; b < blocks; b++)                                                        \
      UNROLL for (int r = 0; r < rows; r++) store(p, row + r, block + b, total[b][r]);             \
  }                                                                                                \
  static int NAME(const Product *p, long row, long block, int rows) {                              \
    if (p->bits == 4) { SHAPES(NAME, 4) }                                                          \
    if (p->bits == 8) { SHAPES(NAME, 8) }                                                          \
    LAST(NAME)                                                                                     \
    return rows;                                                                                   \
  }

#define PART_ROWS 240 /* of a part of a product's work, at most */
#define MANY_ROWS 24  /* from so many on unpacking weights for all of them is faster */

/* Tiles of rows and blocks, of as many sums as there are registers for. */
#define PIECE 4 /* blocks */
#define SHAPE(NAME, R, B, BITS)                                                                    \
  if (rows >= R) {                                                                                 \
    for (int b = 0; b < PIECE; b += B) NAME##_tile(p, row, block + b, R, B, BITS);                 \
    return R;                                                                                      \
  }
#define MANY(NAME, BITS) SHAPE(NAME, 6, 2, BITS) SHAPE(NAME, 2, 4, BITS) SHAPE(NAME, 1, 4, BITS)
/* Of bfloat16, which nothing has to be unpacked for. */
#define WHOLE(NAME)                                                                                \
  SHAPE(NAME, 6, 4, 16) SHAPE(NAME, 4, 4, 16) SHAPE(NAME, 2, 4, 16) SHAPE(NAME, 1, 4, 16)
#define NONE(NAME)
#define FEW(NAME, BITS) SHAPE(NAME, 4, 1, BITS) SHAPE(NAME, 1, 4, BITS)

#define ADD_FLOATS                                                                                 \
  UNROLL for (int n = 0; n < 32 / bits; n++)                                                       \
    UNROLL for (int b = 0; b < blocks; b++) {                                                      \
      floats weight = number_of(stored[b], n, bits);                                               \
      UNROLL for (int r = 0; r < rows; r++)                                                        \
        sum[b][r] += weight * ((const float *)p->x)[(row + r) * p->in + k + n];                    \
    }

#ifdef __AVX512BF16__
/* The integers of a word's 16 bits as bfloat16, which has all of 8 bits. */
INLINE __m512bh pair(words stored, int n, const int bits) {
  if (bits == 16) return (__m512bh)stored;
  if (bits == 4) {
    const short one = 0x3f80, table[32] = {
      0, one, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0, 0x4100, 0x4110, 0x4120, 0x4130,
      0x4140, 0x4150, 0x4160, 0x4170,
      0, one, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0, 0x4100, 0x4110, 0x4120, 0x4130,
      0x4140, 0x4150, 0x4160, 0x4170};
    __m512i shifted = _mm512_srli_epi16((__m512i)stored, 4 * n);
    return (__m512bh)_mm512_permutexvar_epi16(shifted, _mm512_loadu_si512(table));
  }
  words mine = stored >> (8 * n);
  floats even = __builtin_convertvector((ints)(mine & 255), floats);
  floats odd = __builtin_convertvector((ints)(mine >> 16 & 255), floats);
  return (__m512bh)(*(words *)&even >> 16 | *(words *)&odd);
}
#define ADD_BFLOAT16                                                                               \
  UNROLL for (int n = 0; n < 16 / bits; n++)                                                       \
    UNROLL for (int b = 0; b < blocks; b++) {                                                      \
      __m512bh weight = pair(stored[b], n, bits);                                                  \
      UNROLL for (int r = 0; r < rows; r++) {                                                      \
        int both;                                                                                  \
        memcpy(&both, (const uint16_t *)p->x + (row + r) * p->in + k + 2 * n, 4);                  \
        sum[b][r] = (floats)_mm512_dpbf16_ps((__m512)sum[b][r], weight,                            \
                                             (__m512bh)_mm512_set1_epi32(both));                   \
      }                                                                                            \
    }
TILE(with_bfloat16, ADD_BFLOAT16, MANY, WHOLE)
#define BFLOAT16 1
/* The compiler does not see what tiles read and write. */
#define SEEN __asm__ volatile("" ::: "memory")
#ifdef __AMX_BF16__
#include <sys/syscall.h>
#include <unistd.h>
/* The same by tiles of 16 rows, of which there may be fewer, 16 outputs and 32 inputs. */
typedef struct {
  uint8_t palette, start, none[14];
  uint16_t bytes[16];
  uint8_t rows[16];
} Tiles;
static int may_use_tiles;
__attribute__((constructor)) static void ask_for_tiles(void) {
  may_use_tiles = !syscall(SYS_arch_prctl, 0x1023, 18); /* ARCH_REQ_XCOMP_PERM, XTILEDATA */
}

/* Of a block: unpacks a tile of weights, and adds its products to tile `B`. */
#define BLOCK(B, TILE)                                                                             \
  if (B < blocks) {                                                                                \
    const uint8_t *from = at[B] + head + k * bits * 2;                                             \
    words *to = weights[g & 1][B];                                                                 \
    for (long w = 0; w < each; w++) {                                                              \
      words stored = *(const words *)(from + w * 64);                                              \
      __builtin_prefetch(from + w * 64 + AHEAD);                                                   \
      UNROLL for (int n = 0; n < 16 / bits; n++)                                                   \
        to[w * 16 / bits + n] = (words)pair(stored, n, bits);                                      \
    }                                                                                              \
    SEEN;                                                                                          \
    if (!k) _tile_zero(B);                                                                         \
    _tile_loadd(TILE, to, 64);                                                                     \
    _tile_dpbf16ps(B, 4, TILE);                                                                    \
  }
INLINE void tiles(const Product *p, long row, long block, int rows, const int most,
                  const int blocks, const int bits) {
  const long groups = p->in / p->group, size = group_size(p), head = head_size(p);
  const long inputs = p->group < 32 ? p->group : 32, each = inputs * bits / 32;
  const uint8_t *at[4];
  _Alignas(64) words weights[2][4][16];
  _Alignas(64) floats sums[2][4][16] = {0}; /* what lies there else may be slow, such as 1e-40 */
  floats total[16];
  UNROLL for (int b = 0; b < blocks; b++) at[b] = p->packed + (block + b) * groups * size;
  UNROLL16 for (int i = 0; i < most * blocks; i++) total[i] = (floats){0};
  for (long g = 0; g <= groups; g++) {
    if (g < groups) {
      for (long k = 0; k < p->group; k += inputs) {
        _tile_loadd(4, (const uint16_t *)p->x + row * p->in + g * p->group + k, p->in * 2);
        BLOCK(0, 5) BLOCK(1, 6) BLOCK(2, 5) BLOCK(3, 6)
      }
      _tile_stored(0, sums[g & 1][0], 64);
      if (blocks > 1) _tile_stored(1, sums[g & 1][1], 64);
      if (blocks > 2) _tile_stored(2, sums[g & 1][2], 64);
      if (blocks > 3) _tile_stored(3, sums[g & 1][3], 64);
      SEEN;
    }
    UNROLL for (int b = 0; b < blocks; b++) {
      if (g) { /* the group before, whose sums are there by now */
        Scales scales = scales_of(at[b] - size, p);
        UNROLL16 for (int r = 0; r < most; r++)
          total[b * most + r] = added(total[b * most + r], &scales, sums[(g - 1) & 1][b][r], p,
                                      g - 1, row + (r < rows ? r : 0));
      }
      at[b] += size;
    }
  }
  UNROLL for (int b = 0; b < blocks; b++)
    UNROLL16 for (int r = 0; r < most; r++)
      if (r < rows) store(p, row + r, block + b, total[b * most + r]);
}

static void shape_tiles(const Product *p, int rows) {
  const int inputs = p->group < 32 ? p->group : 32;
  Tiles shape = {1};
  for (int i = 0; i < 7; i++) {
    shape.bytes[i] = i == 4 ? inputs * 2 : 64;
    shape.rows[i] = i > 4 ? inputs / 2 : rows;
  }
  _tile_loadconfig(&shape);
}

static int with_tiles(const Product *p, long row, long block, int left) {
  const int rows = left < 16 ? left : 16;
  shape_tiles(p, rows);
#define MORE_THAN(OTHERS, MOST, BLOCKS, BITS)                                                      \
  if (rows > OTHERS) {                                                                             \
    for (int b = 0; b < PIECE; b += BLOCKS) tiles(p, row, block + b, rows, MOST, BLOCKS, BITS);    \
    return rows;                                                                                   \
  }
#define ALL(BITS)                                                                                  \
  MORE_THAN(4, 16, 1, BITS) MORE_THAN(1, 4, 4, BITS) MORE_THAN(0, 1, 4, BITS)
  if (p->bits == 4) { ALL(4) }
  ALL(8)
  return rows;
}
#endif

/* Of many rows: weights of some blocks are unpacked for all of them, some inputs at a time. What an
   output is of a row is summed as above. */
#define INPUTS 256 /* unpacked at once */
#define WIDE 2     /* blocks */
#define TALL 16    /* rows of a tile, at most */
typedef struct {
  words weights[WIDE][INPUTS / 2];
  Scales scales[WIDE][INPUTS / LANES];
} Unpacked;

INLINE void unpack(const Product *p, long block, long first, long groups, const int bits,
                   Unpacked *to) {
  const long head = head_size(p), each = p->group * bits / 32;
  for (int b = 0; b < WIDE; b++)
    for (long g = 0; g < groups; g++) {
      const long which = (block + b) * (p->in / p->group) + first + g;
      const uint8_t *at = p->packed + which * group_size(p);
      words *weights = to->weights[b] + g * p->group / 2;
      to->scales[b][g] = scales_of(at, p);
      for (long w = 0; w < each; w++)
        UNROLL for (int n = 0; n < 16 / bits; n++)
          weights[w * 16 / bits + n] = (words)pair(*(const words *)(at + head + w * 64), n, bits);
    }
}

/* Adds what groups of unpacked weights give to the totals of `tall` rows. */
INLINE void add_vectors(const Product *p, const Unpacked *u, long row, long first, long groups,
                        floats total[WIDE][TALL]) {
  for (long g = 0; g < groups; g++) {
    floats sum[WIDE][ROWS];
    UNROLL for (int b = 0; b < WIDE; b++)
      UNROLL for (int r = 0; r < ROWS; r++) sum[b][r] = (floats){0};
    for (long w = g * p->group / 2; w < (g + 1) * p->group / 2; w++)
      UNROLL for (int r = 0; r < ROWS; r++) {
        int both;
        memcpy(&both, (const uint16_t *)p->x + (row + r) * p->in + first * p->group + 2 * w, 4);
        UNROLL for (int b = 0; b < WIDE; b++)
          sum[b][r] = (floats)_mm512_dpbf16_ps((__m512)sum[b][r], (__m512bh)u->weights[b][w],
                                               (__m512bh)_mm512_set1_epi32(both));
      }
    UNROLL for (int b = 0; b < WIDE; b++)
      UNROLL for (int r = 0; r < ROWS; r++)
        total[b][r] = added(total[b][r], &u->scales[b][g], sum[b][r], p, first + g, row + r);
  }
}
#ifdef __AMX_BF16__
INLINE void add_tiles(const Product *p, const Unpacked *u, long row, long first, long groups,
                      floats total[WIDE][TALL]) {
  _Alignas(64) floats sums[2][TALL];
  const long inputs = p->group < 32 ? p->group : 32;
  for (int b = 0; b < WIDE; b++) {
    floats own[TALL];
    UNROLL16 for (int r = 0; r < TALL; r++) own[r] = total[b][r];
    for (long g = 0; g <= groups; g++) {
      if (g < groups) {
        _tile_zero(0);
        for (long k = g * p->group; k < (g + 1) * p->group; k += inputs) {
          _tile_loadd(4, (const uint16_t *)p->x + row * p->in + first * p->group + k, p->in * 2);
          _tile_loadd(5, u->weights[b] + k / 2, 64);
          _tile_dpbf16ps(0, 4, 5);
        }
        _tile_stored(0, sums[g & 1], 64);
        SEEN;
      }
      if (g) { /* the group before, whose sums are there by now */
        UNROLL16 for (int r = 0; r < TALL; r++)
          own[r] = added(own[r], &u->scales[b][g - 1], sums[(g - 1) & 1][r], p, first + g - 1,
                         row + r);
      }
    }
    UNROLL16 for (int r = 0; r < TALL; r++) total[b][r] = own[r];
  }
}
#endif

/* Rows by a piece of blocks, in tiles of `tall`; the last begins before the end of the one before
   it, if it must. */
INLINE void many(const Product *p, long first_row, long end_row, long block, const int tall,
                 const int bits) {
  const long all = p->in / p->group, most = INPUTS / p->group;
  _Alignas(64) Unpacked unpacked;
  _Alignas(64) floats totals[PART_ROWS / ROWS][WIDE][TALL];
  for (long b = block; b < block + PIECE; b += WIDE)
    for (long first = 0, groups; first < all; first += groups) {
      groups = all - first < most ? all - first : most;
      unpack(p, b, first, groups, bits, &unpacked);
      SEEN;
      for (long row = first_row, t = 0; row < end_row; row += tall, t++) {
        const long at = row + tall > end_row ? end_row - tall : row;
        UNROLL for (int n = 0; !first && n < WIDE; n++)
          UNROLL16 for (int r = 0; r < tall; r++) totals[t][n][r] = (floats){0};
#ifdef __AMX_BF16__
        if (tall == TALL) add_tiles(p, &unpacked, at, first, groups, totals[t]);
        else
#endif
          add_vectors(p, &unpacked, at, first, groups, totals[t]);
        if (first + groups == all)
          for (int n = 0; n < WIDE; n++)
            for (int r = 0; r < tall; r++) store(p, at + r, b + n, totals[t][n][r]);
      }
    }
}
#else
#define BFLOAT16 0
#define with_bfloat16 with_floats
#endif
#ifdef __AVX512F__
TILE(with_floats, ADD_FLOATS, MANY, NONE)
#else
TILE(with_floats, ADD_FLOATS, FEW, NONE)
#endif

/* What a thread begins and ends products with: oneDNN counts on finding its tiles as they were. */
typedef struct {
  uint8_t tiles[64];
} Before;
INLINE void begin(Before *before) {
#ifdef __AMX_BF16__
  if (may_use_tiles) _tile_storeconfig(before);
#endif
}
INLINE void finish(Before *before) {
#ifdef __AMX_BF16__
  if (may_use_tiles) _tile_loadconfig(before);
#endif
}

/* Some of the rows that are left, by a piece of blocks; how many. Which variant it is does not
   depend on the rows. */
static int some_rows(const Product *p, long row, long block, int left) {
  if (!p->bfloat16) return with_floats(p, row, block, left);
#ifdef __AMX_BF16__
  const int whole = p->group % 32 == 0 || p->group == 16;
  if (may_use_tiles && whole && p->bits < 16) return with_tiles(p, row, block, left);
#endif
  return with_bfloat16(p, row, block, left);
}

/* Rows of a part of a product's work: so many, but for the last. */
static long part_rows(long rows) {
  const long parts = rows > PART_ROWS ? (rows + PART_ROWS - 1) / PART_ROWS : 1;
  return ((rows + parts - 1) / parts + 47) / 48 * 48;
}

/* A part of the rows by a piece of blocks. */
static void part_of_rows(const Product *p, long part, long block, long rows) {
  const long each = part_rows(rows), first = part * each;
  const long end = first + each < rows ? first + each : rows;
#if BFLOAT16
  if (p->bfloat16 && p->bits < 16 && end - first >= MANY_ROWS && p->group <= INPUTS) {
#define MANY_OF(TALL_OF)                                                                           \
  if (p->bits == 4) many(p, first, end, block, TALL_OF, 4);                                        \
  else many(p, first, end, block, TALL_OF, 8);                                                     \
  return;
#ifdef __AMX_BF16__
    if (may_use_tiles && (p->group % 32 == 0 || p->group == 16)) {
      shape_tiles(p, TALL);
      MANY_OF(TALL)
    }
#endif
    MANY_OF(ROWS)
  }
#endif
  for (long row = first; row < end;) row += some_rows(p, row, block, end - row);
}

/* Sums of each group of a row's inputs, which are widened into `wide` if there is one. */
static void sums(const Product *p, const void *x, float *wide, long row, long rows,
                 float *found) {
  if (p->bits == 16) return; /* which nothing is added for */
  for (long g = 0; g < p->in / p->group; g++) {
    floats sum = {0};
    for (long k = g * p->group; k < (g + 1) * p->group; k += LANES) {
      long at = row * p->in + k;
      floats part = p->bfloat16 ? from_bfloat16((const uint16_t *)x + at)
                                : *(const floats *)((const float *)x + at);
      if (wide) *(floats *)(wide + at) = part;
      sum += part;
    }
    found[g * rows + row] = total(sum);
  }
}

/* `y = x Wᵀ + b (+ residual)`, of rows whose numbers lie side by side; 0, or 1 without memory. */
int multiply(const Product *layer, const void *x, const void *residual, void *y, long rows) {
  if (!rows) return 0;
  Product p = *layer;
  const long groups = p.in / p.group, blocks = blocks_of(&p);
  const int widens = p.bfloat16 && !BFLOAT16;
  float *room = malloc((rows * groups + (widens ? rows * p.in : 0)) * sizeof(float) + 1);
  if (!room) return 1;
  float *wide = widens ? room + rows * groups : 0;
  p.x = wide ? wide : x, p.x_sums = room, p.residual = residual, p.y = y, p.rows = rows;
#pragma omp parallel for if (rows > 8)
  for (long row = 0; row < rows; row++) sums(&p, x, wide, row, rows, room);
  /* A piece of weights meets rows while it is in a cache; the last is all of its size, too. */
  const long pieces = (blocks + PIECE - 1) / PIECE, parts = (rows - 1) / part_rows(rows) + 1;
#pragma omp parallel
  {
    Before before;
    begin(&before);
#pragma omp for
    for (long i = 0; i < pieces * parts; i++) {
      const long at = i % pieces * PIECE;
      part_of_rows(&p, i / pieces, at > blocks - PIECE ? blocks - PIECE : at, rows);
    }
    finish(&before);
  }
  free(room);
  return 0;
}

/* Weights `[rows, in]` of some rows, float32. */
void widen(const Product *p, const int64_t *wanted, long rows, float *found) {
  const long groups = p->in / p->group, size = group_size(p), each = 32 / p->bits;
  const long width = p->half ? 2 : 4, head = head_size(p);
#pragma omp parallel for if (rows > 16)
  for (long i = 0; i < rows; i++) {
    const long row = wanted ? wanted[i] : i, lane = row % LANES;
    for (long g = 0; g < groups; g++) {
      const uint8_t *at = p->packed + (row / LANES * groups + g) * size;
      Scales scales = {0};
      if (head) scales = scales_of(at, p);
      for (long k = 0; k < p->group; k++) {
        const uint32_t word = ((const uint32_t *)(at + head))[k / each * LANES + lane];
        const int n = k % each;
        const float number = number_of((words){word}, n, p->bits)[0];
        found[i * p->in + g * p->group + k] =
          head ? number * scales.scale[lane] + scales.least[lane] : number;
      }
    }
  }
}

/* Packs numbers `[out, in]`, bytes or bfloat16, and scales and least values `[out, groups]`. */
void pack(const Product *p, const void *numbers, const void *scales, const void *least,
          uint8_t *packed) {
  const long groups = p->in / p->group, size = group_size(p), each = 32 / p->bits;
  const long width = p->half ? 2 : 4, head = head_size(p);
#pragma omp parallel for
  for (long block = 0; block < blocks_of(p); block++)
    for (long g = 0; g < groups; g++) {
      uint8_t *at = packed + (block * groups + g) * size;
      for (long lane = 0; lane < LANES; lane++) {
        const long here = block * LANES + lane, row = here < p->out ? here : p->out - 1;
        const long one = (row * groups + g) * width;
        const long from = row * p->in + g * p->group;
        if (head) {
          memcpy(at + lane * width, (const char *)scales + one, width);
          memcpy(at + (LANES + lane) * width, (const char *)least + one, width);
        }
        for (long w = 0; w < p->group / each; w++) {
          uint32_t word = 0;
          for (int n = 0; n < each; n++) {
            const long i = from + w * each + n;
            const uint32_t number =
              p->bits == 16 ? ((const uint16_t *)numbers)[i] : ((const uint8_t *)numbers)[i];
            word |= number << ((n & 1) * 16 + (n >> 1) * p->bits);
          }
          ((uint32_t *)(at + head))[w * LANES + lane] = word;
        }
      }
    }
}
