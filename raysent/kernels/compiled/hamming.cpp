// Nearest neighbours of packed codes by Hamming distance.
//
// Codes are contiguous rows of `width` bytes. A block of rows that fits in the L1 cache is compared with every query
// before the next block is read, so that memory is read once for any number of queries.

#include <algorithm>
#include <climits>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#if defined(__AVX512VPOPCNTDQ__) && defined(__AVX512BW__)
#include <immintrin.h>
#define HAS_VECTOR_COUNTS
#endif

namespace {

constexpr int64_t kBlockBytes = 1 << 14;

// The k nearest rows so far, a heap with the farthest on top; of equal distances the later row is farther.
struct Nearest {
    int64_t k;
    int64_t bound = INT64_MAX;  // only smaller distances can be inserted
    std::vector<std::pair<int64_t, int64_t>> heap;

    explicit Nearest(int64_t k) : k(k) {}

    // Rows are offered in order, so a row at the bound is never nearer than the rows of the heap.
    void offer(int64_t distance, int64_t row) {
        if (distance >= bound) return;
        if (static_cast<int64_t>(heap.size()) == k) {
            std::pop_heap(heap.begin(), heap.end());
            heap.back() = {distance, row};
        } else {
            heap.emplace_back(distance, row);
        }
        std::push_heap(heap.begin(), heap.end());
        if (static_cast<int64_t>(heap.size()) == k) bound = heap.front().first;
    }
};

inline uint64_t word(const uint8_t* bytes) {
    uint64_t value;
    std::memcpy(&value, bytes, 8);
    return value;
}

int64_t distance(const uint8_t* row, const uint8_t* query, int64_t width) {
    int64_t sum = 0, at = 0;
    for (; at + 8 <= width; at += 8) sum += __builtin_popcountll(word(row + at) ^ word(query + at));
    for (; at < width; ++at) sum += __builtin_popcount(row[at] ^ query[at]);
    return sum;
}

void compare_one_by_one(const uint8_t* rows, int64_t first, int64_t last, const uint8_t* query, int64_t width,
                        Nearest& nearest) {
    for (int64_t row = first; row < last; ++row) nearest.offer(distance(rows + row * width, query, width), row);
}

// Rows of kWords whole words and a rest, 0 to 7 bytes: the last word of a row, without the bytes that were counted.
template <int kWords>
void compare_words(const uint8_t* rows, int64_t first, int64_t last, const uint8_t* query, int64_t width,
                   Nearest& nearest) {
    uint64_t own[kWords];
    for (int i = 0; i < kWords; ++i) own[i] = word(query + 8 * i);
    const int64_t rest = width - 8 * kWords, end = width - 8;
    const uint64_t own_rest = word(query + end), kept = rest ? ~0ULL << (64 - 8 * rest) : 0;
    for (int64_t row = first; row < last; ++row) {
        const uint8_t* bytes = rows + row * width;
        int64_t sum = __builtin_popcountll((word(bytes + end) ^ own_rest) & kept);
        for (int i = 0; i < kWords; ++i) sum += __builtin_popcountll(word(bytes + 8 * i) ^ own[i]);
        nearest.offer(sum, row);
    }
}

#ifdef HAS_VECTOR_COUNTS

inline __m512i count(__m512i a, __m512i b) { return _mm512_popcnt_epi64(_mm512_xor_si512(a, b)); }

// A query of kVectors whole vectors, which are kept in registers.
template <int kVectors>
struct Query {
    __m512i parts[kVectors];

    Query(const uint8_t* query, int64_t) {
        for (int i = 0; i < kVectors; ++i) parts[i] = _mm512_loadu_si512(query + 64 * i);
    }
    __m512i counts(const uint8_t* row) const {
        __m512i sum = count(_mm512_loadu_si512(row), parts[0]);
        for (int i = 1; i < kVectors; ++i)
            sum = _mm512_add_epi64(sum, count(_mm512_loadu_si512(row + 64 * i), parts[i]));
        return sum;
    }
};

// A query of any width, read from memory for every row.
template <>
struct Query<0> {
    const uint8_t* query;
    int64_t whole;
    __mmask64 rest;

    Query(const uint8_t* query, int64_t width)
        : query(query), whole(width / 64 * 64), rest((1ULL << (width % 64)) - 1) {}
    __m512i counts(const uint8_t* row) const {
        __m512i sum = count(_mm512_maskz_loadu_epi8(rest, row + whole), _mm512_maskz_loadu_epi8(rest, query + whole));
        for (int64_t at = 0; at < whole; at += 64)
            sum = _mm512_add_epi64(sum, count(_mm512_loadu_si512(row + at), _mm512_loadu_si512(query + at)));
        return sum;
    }
};

// Sums the lanes of eight vectors: lane r of the result is the sum of sums[r].
inline __m512i lane_sums(const __m512i* sums) {
    __m512i pairs[4], fours[2];
    for (int i = 0; i < 4; ++i)
        pairs[i] = _mm512_add_epi64(_mm512_unpacklo_epi64(sums[2 * i], sums[2 * i + 1]),
                                    _mm512_unpackhi_epi64(sums[2 * i], sums[2 * i + 1]));
    for (int i = 0; i < 2; ++i)
        fours[i] = _mm512_add_epi64(_mm512_shuffle_i64x2(pairs[2 * i], pairs[2 * i + 1], 0x88),
                                    _mm512_shuffle_i64x2(pairs[2 * i], pairs[2 * i + 1], 0xdd));
    return _mm512_add_epi64(_mm512_shuffle_i64x2(fours[0], fours[1], 0x88),
                            _mm512_shuffle_i64x2(fours[0], fours[1], 0xdd));
}

inline void offer_eight(Nearest& nearest, __m512i distances, int64_t row) {
    // Few rows are among the nearest, so usually all eight are skipped at once.
    if (!_mm512_cmplt_epi64_mask(distances, _mm512_set1_epi64(nearest.bound))) return;
    alignas(64) int64_t each[8];
    _mm512_store_si512(each, distances);
    for (int r = 0; r < 8; ++r) nearest.offer(each[r], row + r);
}

template <int kVectors>
void compare_in_eights(const uint8_t* rows, int64_t first, int64_t last, const uint8_t* query, int64_t width,
                       Nearest& nearest) {
    const Query<kVectors> own(query, width);
    if (kVectors) width = 64 * kVectors;
    int64_t row = first;
    for (; row + 8 <= last; row += 8) {
        __m512i sums[8];
        for (int r = 0; r < 8; ++r) sums[r] = own.counts(rows + (row + r) * width);
        offer_eight(nearest, lane_sums(sums), row);
    }
    compare_one_by_one(rows, row, last, query, width, nearest);
}

#endif

// Compares a query with the rows from first to last, in order.
void compare(const uint8_t* rows, int64_t first, int64_t last, const uint8_t* query, int64_t width, Nearest& nearest) {
#ifdef HAS_VECTOR_COUNTS
    switch (width) {
        case 64: return compare_in_eights<1>(rows, first, last, query, width, nearest);
        case 128: return compare_in_eights<2>(rows, first, last, query, width, nearest);
        case 256: return compare_in_eights<4>(rows, first, last, query, width, nearest);
        case 512: return compare_in_eights<8>(rows, first, last, query, width, nearest);
        default: return compare_in_eights<0>(rows, first, last, query, width, nearest);
    }
#else
    switch (width / 8) {
        case 1: return compare_words<1>(rows, first, last, query, width, nearest);
        case 2: return compare_words<2>(rows, first, last, query, width, nearest);
        case 4: return compare_words<4>(rows, first, last, query, width, nearest);
        case 8: return compare_words<8>(rows, first, last, query, width, nearest);
        default: return compare_one_by_one(rows, first, last, query, width, nearest);
    }
#endif
}

// Compares all queries with all rows, block by block.
void compare_all(const uint8_t* queries, const uint8_t* rows, int64_t num_rows, int64_t width,
                 std::vector<Nearest>& nearest) {
    const int64_t size = std::max<int64_t>(kBlockBytes / std::max<int64_t>(width, 1) / 8 * 8, 8);
    for (int64_t first = 0; first < num_rows; first += size)
        for (size_t query = 0; query < nearest.size(); ++query)
            compare(rows, first, std::min(first + size, num_rows), queries + query * width, width, nearest[query]);
}

}  // namespace

// The k nearest rows of every query, nearest first, equal distances in row order; k is at most the number of rows.
// out_rows and out_distances are [queries, k].
extern "C" void hamming_nearest(const uint8_t* queries, int64_t num_queries, const uint8_t* rows, int64_t num_rows,
                                int64_t width, int64_t k, int64_t* out_rows, int64_t* out_distances) {
    std::vector<Nearest> nearest(num_queries, Nearest(k));
    compare_all(queries, rows, num_rows, width, nearest);
    for (int64_t query = 0; query < num_queries; ++query) {
        auto& heap = nearest[query].heap;
        std::sort_heap(heap.begin(), heap.end());
        for (size_t place = 0; place < heap.size(); ++place) {
            out_distances[query * k + place] = heap[place].first;
            out_rows[query * k + place] = heap[place].second;
        }
    }
}
