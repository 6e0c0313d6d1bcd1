// The operations of a GRU between two matrix products, forward and backward, in one pass over each sentence's state.
//
// One call is one time step of a packed batch: `batch` rows, the sentences that reach it, whose tokens start at row
// `first`. The caller computes the products U h and d U, in float32 or bfloat16; the operations here are in float32. A
// row of 3 * hidden values has the blocks r, z, c. Rows are tokens, time-major, unless noted otherwise.
//
// With products in bfloat16, all that a backward reads is kept in 16 bits, and a sentence has one state in float32,
// which each time step replaces.

#include <cstdint>
#include <type_traits>

#include "numbers.h"

namespace {

// The arguments shared by all time steps of one direction; `_Direction` in gru_cells.py has the same fields.
struct Direction {
    int64_t hidden;
    int64_t is_low_projected;  // whether `projected` and `d_projected` are in bfloat16
    const int64_t* tokens;     // word of each token
    const void* projected;     // W x + b of each distinct word [distinct, 3 * hidden]
    const float* bias;         // b' of the candidate [hidden]
    void* gates;               // float32: r, z and c after activation [tokens, 3 * hidden]; bfloat16: values of `Kept`
                               // [tokens, 2 * hidden]; null if no backward follows
    float* products;           // float32: U_c h + b' [tokens, hidden]
    void* states;              // state before each token [tokens, hidden], without a backward of each sentence
    const void* recurrent;     // U h of this time step [batch, 3 * hidden]
    float* last;               // state after the last token of each sentence, in bfloat16 so far [batch, hidden]
    float* d_state;            // gradient of each sentence's state [batch, hidden]
    const void* d_recurrent;   // gradient through U from the next time step [batch, hidden]
    void* d_products;          // gradient of U h [tokens, 3 * hidden]; may be `gates`
    float* sums;               // gradient of `projected`, added to [distinct, 3 * hidden]; if it is in bfloat16,
                               // without initial values, and only of words with several tokens
    int64_t* left;             // number of tokens that a word still has, negative after the first one [distinct]
    void* d_projected;         // gradient of `projected` in bfloat16, written with a word's last token
    float* d_bias;             // gradient of `bias`, added to [hidden]
};

// What a backward reads of one value of a state, in four times 16 bits: gates between 0 and 1 as fixed points, whose
// error is less than bfloat16's, and U_c h + b' in bfloat16. s is the sigmoid of the candidate, c = 1 - 2 s.
struct Kept {
    static constexpr float scale = 65535.0f;
    uint32_t gates, candidate;
    static Kept of(float r, float z, float s, float product) {
        return {fixed(r) << 16 | fixed(z), fixed(s) << 16 | BFloat16::write_quickly(product)};
    }
    static uint32_t fixed(float gate) { return static_cast<int32_t>(gate * scale + 0.5f); }
    static float gate(uint32_t fixed) { return static_cast<int32_t>(fixed) * (1.0f / scale); }
};

template <class Low>
using KeptType = std::conditional_t<Low::is_low, uint32_t, float>;
template <class Low>
constexpr int64_t num_kept = Low::is_low ? 2 : 3;

template <class Low, class In, bool is_first, bool needs_backward>
void forward_row(int64_t hidden, const typename In::Type* __restrict inputs,
                 const typename Low::Type* __restrict recurrent, const float* __restrict bias, const float* before,
                 KeptType<Low>* __restrict gates, float* __restrict product, float* after,
                 typename Low::Type* __restrict low_after) {
#pragma GCC ivdep
    for (int64_t i = 0; i < hidden; i++) {
        const float h = is_first ? 0.0f : before[i];
        const float recurrent_r = is_first ? 0.0f : Low::read(recurrent[i]);
        const float recurrent_z = is_first ? 0.0f : Low::read(recurrent[hidden + i]);
        const float recurrent_c = (is_first ? 0.0f : Low::read(recurrent[2 * hidden + i])) + bias[i];
        const float sum_r = In::read(inputs[i]) + recurrent_r, sum_z = In::read(inputs[hidden + i]) + recurrent_z;
        const float input_c = In::read(inputs[2 * hidden + i]);
        float r, z, c;
        if constexpr (Low::is_low) {
            // One division for both.
            const float one = one_plus_exponential(-sum_r), other = one_plus_exponential(-sum_z);
            const float inverse = 1.0f / (one * other);
            r = other * inverse;
            z = one * inverse;
            const float s = 1.0f / one_plus_exponential(2.0f * (input_c + r * recurrent_c));
            c = 1.0f - 2.0f * s;
            if (needs_backward) {
                const Kept kept = Kept::of(r, z, s, recurrent_c);
                gates[i] = kept.gates;
                gates[hidden + i] = kept.candidate;
            }
        } else {
            r = sigmoid(sum_r);
            z = sigmoid(sum_z);
            c = hyperbolic_tangent(input_c + r * recurrent_c);
            if (needs_backward) {
                gates[i] = r;
                gates[hidden + i] = z;
                gates[2 * hidden + i] = c;
                product[i] = recurrent_c;
            }
        }
        const float state = c + z * (h - c);
        after[i] = state;
        if (low_after) low_after[i] = Low::write_quickly(state);
    }
}

template <class Low, class In, bool is_first, bool needs_backward>
void forward(const Direction& d, int64_t first, int64_t batch, int64_t next_batch) {
    using Type = typename Low::Type;
    const int64_t hidden = d.hidden, now = needs_backward ? first : 0, next = needs_backward ? first + batch : 0;
    const Type* recurrent = static_cast<const Type*>(d.recurrent);
    const auto* projected = static_cast<const typename In::Type*>(d.projected);
    Type* states = static_cast<Type*>(d.states);
    auto* gates = static_cast<KeptType<Low>*>(d.gates);
    for (int64_t row = 0; row < batch; row++) {
        const bool continues = row < next_batch;
        float *before = d.last + row * hidden, *after = before;
        Type* low_after = nullptr;
        if constexpr (Low::is_low) {
            if (continues) low_after = states + (next + row) * hidden;
        } else {
            before = states + (now + row) * hidden;
            if (continues || !needs_backward) after = states + (next + row) * hidden;
        }
        forward_row<Low, In, is_first, needs_backward>(
            hidden, projected + d.tokens[first + row] * 3 * hidden, recurrent + row * 3 * hidden, d.bias, before,
            gates + (needs_backward ? (now + row) * num_kept<Low> * hidden : 0),
            d.products + (needs_backward ? (now + row) * hidden : 0), after, low_after);
    }
}

// `adds`: to the sum of the word's other tokens; `ends`: this is its last token.
template <class Low, class In, bool is_first, bool adds, bool ends>
void backward_row(int64_t hidden, float* __restrict d_state, const typename Low::Type* __restrict d_recurrent,
                  const KeptType<Low>* gates, const float* __restrict product,
                  const typename Low::Type* __restrict before, typename Low::Type* d_products, float* __restrict sums,
                  typename In::Type* __restrict d_projected, float* __restrict d_bias) {
#pragma GCC ivdep
    for (int64_t i = 0; i < hidden; i++) {
        const float h = is_first ? 0.0f : Low::read(before[i]);
        const float d = d_state[i] + (d_recurrent ? Low::read(d_recurrent[i]) : 0.0f);
        float r, z, d_c, d_z, d_r;
        if constexpr (Low::is_low) {
            const uint32_t kept = gates[i], candidate = gates[hidden + i];
            r = Kept::gate(kept >> 16);
            z = Kept::gate(kept & 0xffff);
            const float s = Kept::gate(candidate >> 16);
            d_c = d * (1.0f - z) * (4.0f * s) * (1.0f - s);
            d_z = d * (h - (1.0f - 2.0f * s)) * z * (1.0f - z);
            d_r = d_c * BFloat16::read(static_cast<uint16_t>(candidate)) * r * (1.0f - r);
        } else {
            r = gates[i], z = gates[hidden + i];
            const float c = gates[2 * hidden + i];
            d_c = d * (1.0f - z) * (1.0f - c * c);
            d_z = d * (h - c) * z * (1.0f - z);
            d_r = d_c * product[i] * r * (1.0f - r);
        }
        d_state[i] = d * z;
        d_bias[i] += d_c * r;
        const float sum_r = adds ? sums[i] + d_r : d_r;
        const float sum_z = adds ? sums[hidden + i] + d_z : d_z;
        const float sum_c = adds ? sums[2 * hidden + i] + d_c : d_c;
        if constexpr (ends) {
            d_projected[i] = In::write_quickly(sum_r);
            d_projected[hidden + i] = In::write_quickly(sum_z);
            d_projected[2 * hidden + i] = In::write_quickly(sum_c);
        } else {
            sums[i] = sum_r;
            sums[hidden + i] = sum_z;
            sums[2 * hidden + i] = sum_c;
        }
        d_products[i] = Low::write_quickly(d_r);
        d_products[hidden + i] = Low::write_quickly(d_z);
        d_products[2 * hidden + i] = Low::write_quickly(d_c * r);
    }
}

template <class Low, class In, bool is_first>
void backward(const Direction& d, int64_t first, int64_t batch, int64_t next_batch) {
    using Type = typename Low::Type;
    const int64_t hidden = d.hidden;
    const Type *d_recurrent = static_cast<const Type*>(d.d_recurrent), *states = static_cast<const Type*>(d.states);
    const auto* gates = static_cast<const KeptType<Low>*>(d.gates);
    Type* d_products = static_cast<Type*>(d.d_products);
    auto* d_projected = static_cast<typename In::Type*>(d.d_projected);
    for (int64_t row = 0; row < batch; row++) {
        const int64_t token = first + row, word = d.tokens[token];
        auto run = backward_row<Low, In, is_first, true, false>;
        if constexpr (In::is_low) {
            const int64_t left = d.left[word];
            d.left[word] = left < 0 ? left + 1 : 1 - left;
            if (left == 1) run = backward_row<Low, In, is_first, false, true>;
            if (left > 1) run = backward_row<Low, In, is_first, false, false>;
            if (left == -1) run = backward_row<Low, In, is_first, true, true>;
        }
        run(hidden, d.d_state + row * hidden, row < next_batch ? d_recurrent + row * hidden : nullptr,
            gates + token * num_kept<Low> * hidden, d.products + token * hidden, states + token * hidden,
            d_products + token * 3 * hidden, d.sums + word * 3 * hidden, d_projected + word * 3 * hidden, d.d_bias);
    }
}

template <class Low, class In>
void forward_step(const Direction& d, int64_t first, int64_t batch, int64_t next_batch) {
    if (d.gates) {
        first ? forward<Low, In, false, true>(d, first, batch, next_batch)
              : forward<Low, In, true, true>(d, first, batch, next_batch);
    } else {
        first ? forward<Low, In, false, false>(d, first, batch, next_batch)
              : forward<Low, In, true, false>(d, first, batch, next_batch);
    }
}

template <class Low, class In>
void backward_step(const Direction& d, int64_t first, int64_t batch, int64_t next_batch) {
    first ? backward<Low, In, false>(d, first, batch, next_batch)
          : backward<Low, In, true>(d, first, batch, next_batch);
}

}  // namespace

// The first `next_batch` rows of the batch are the sentences that reach the next time step.
extern "C" {

void gru_forward_float32(const Direction* d, int64_t first, int64_t batch, int64_t next_batch) {
    forward_step<Float, Float>(*d, first, batch, next_batch);
}

void gru_forward_bfloat16(const Direction* d, int64_t first, int64_t batch, int64_t next_batch) {
    d->is_low_projected ? forward_step<BFloat16, BFloat16>(*d, first, batch, next_batch)
                        : forward_step<BFloat16, Float>(*d, first, batch, next_batch);
}

void gru_backward_float32(const Direction* d, int64_t first, int64_t batch, int64_t next_batch) {
    backward_step<Float, Float>(*d, first, batch, next_batch);
}

void gru_backward_bfloat16(const Direction* d, int64_t first, int64_t batch, int64_t next_batch) {
    d->is_low_projected ? backward_step<BFloat16, BFloat16>(*d, first, batch, next_batch)
                        : backward_step<BFloat16, Float>(*d, first, batch, next_batch);
}
}
