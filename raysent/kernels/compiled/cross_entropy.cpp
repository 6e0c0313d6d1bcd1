// Scores of words -> cross-entropy of each row and, in place of the scores, its gradient, while a row is in the cache.
//
// The scores are float32 or bfloat16, contiguous rows of `words` values; everything else is float32.

#include <cmath>
#include <cstdint>

#include "numbers.h"

namespace {

// Number of independent accumulators, so that the compiler vectorizes maxima and sums.
constexpr int64_t kLanes = 64;

// Adds the bias to the scores of one row; returns their maximum, ignoring NaN.
template <class Low>
float read_row(const typename Low::Type* __restrict scores, const float* __restrict bias, int64_t words,
               float* __restrict row) {
    float highest[kLanes];
    for (int64_t lane = 0; lane < kLanes; lane++) highest[lane] = -INFINITY;
    int64_t first = 0;
    for (; first + kLanes <= words; first += kLanes) {
        for (int64_t lane = 0; lane < kLanes; lane++) {
            const int64_t i = first + lane;
            const float score = Low::read(scores[i]) + (bias ? bias[i] : 0.0f);
            row[i] = score;
            highest[lane] = score > highest[lane] ? score : highest[lane];
        }
    }
    for (int64_t i = first; i < words; i++) {
        row[i] = Low::read(scores[i]) + (bias ? bias[i] : 0.0f);
        highest[0] = row[i] > highest[0] ? row[i] : highest[0];
    }
    for (int64_t lane = 1; lane < kLanes; lane++) highest[0] = highest[lane] > highest[0] ? highest[lane] : highest[0];
    return highest[0];
}

// Replaces each score by exp(score - highest); returns their sum.
float exponentials(float* __restrict row, int64_t words, float highest) {
#pragma GCC ivdep
    for (int64_t i = 0; i < words; i++) row[i] = exponential(row[i] - highest);
    float sums[kLanes] = {};
    int64_t first = 0;
    for (; first + kLanes <= words; first += kLanes) {
        for (int64_t lane = 0; lane < kLanes; lane++) sums[lane] += row[first + lane];
    }
    for (int64_t i = first; i < words; i++) sums[0] += row[i];
    float sum = 0.0f;
    for (int64_t lane = 0; lane < kLanes; lane++) sum += sums[lane];
    return sum;
}

// Replaces the scores by the probabilities, minus 1 at the target, and adds them to the gradient of the bias.
template <class Low>
void write_gradient(const float* __restrict row, int64_t words, float sum, int64_t target,
                    typename Low::Type* __restrict scores, float* __restrict d_bias) {
    const float scale = 1.0f / sum;
    const float d_target = row[target] * scale - 1.0f;
    if (d_bias) {
        const float before = d_bias[target];
        for (int64_t i = 0; i < words; i++) {
            const float probability = row[i] * scale;
            scores[i] = Low::write(probability);
            d_bias[i] += probability;
        }
        d_bias[target] = before + d_target;
    } else {
        for (int64_t i = 0; i < words; i++) scores[i] = Low::write(row[i] * scale);
    }
    scores[target] = Low::write(d_target);
}

template <class Low>
void process_rows(void* scores, const float* bias, const int64_t* targets, float* row, float* losses, float* d_bias,
             int64_t rows, int64_t words, int64_t has_gradient) {
    auto* values = static_cast<typename Low::Type*>(scores);
    for (int64_t number = 0; number < rows; number++, values += words) {
        const float highest = read_row<Low>(values, bias, words, row);
        const float target_score = row[targets[number]];
        const float sum = exponentials(row, words, highest);
        losses[number] = (highest - target_score) + std::log(sum);
        if (has_gradient) write_gradient<Low>(row, words, sum, targets[number], values, d_bias);
    }
}

}  // namespace

// `row` is a buffer for one row; `bias` and `d_bias` may be null.
extern "C" {

void cross_entropy_float32(void* scores, const float* bias, const int64_t* targets, float* row, float* losses,
                       float* d_bias, int64_t rows, int64_t words, int64_t has_gradient) {
    process_rows<Float>(scores, bias, targets, row, losses, d_bias, rows, words, has_gradient);
}

void cross_entropy_bfloat16(void* scores, const float* bias, const int64_t* targets, float* row, float* losses,
                        float* d_bias, int64_t rows, int64_t words, int64_t has_gradient) {
    process_rows<BFloat16>(scores, bias, targets, row, losses, d_bias, rows, words, has_gradient);
}
}
