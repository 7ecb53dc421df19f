"""The prompts of every model: what is shown and what is asked.

`variant` is a small number that changes pictures and words until the greedy tokens are well separated.
"""


def image(index):
    return {"type": "image", "index": index}


def video(index):
    return {"type": "video", "index": index}


def text(words):
    return {"type": "text", "text": words}


def user(*content):
    return {"role": "user", "content": list(content)}


def assistant(words):
    return {"role": "assistant", "content": [text(words)]}


def system(words):
    return {"role": "system", "content": [text(words)]}


def picture(height, width, seed):
    return {"height": height, "width": width, "seed": seed}


def film(frames, height, width, seed, fps=2.0):
    return {"frames": frames, "height": height, "width": width, "seed": seed, "fps": fps}


# The sizes suit a window of 56 pixels: 3 x 5 merged patches do not divide by 2.
def qwen_cases(variant: int) -> dict:
    s = 10 * variant
    return {
        "text": dict(messages=[user(text(f"Name {variant + 2} colours."))], images=[], videos=[]),
        "image_odd": dict(
            messages=[user(image(0), text("What is this?"))], images=[picture(85, 131, s + 1)], videos=[]
        ),
        "images_several": dict(
            messages=[user(image(0), text("and"), image(1), image(2), text("Which differs?"))],
            images=[picture(57, 57, s + 1), picture(61, 91, s + 2), picture(111, 33, s + 3)],
            videos=[],
        ),
        "video_odd_frames": dict(
            messages=[user(video(0), text("What moves?"))], images=[], videos=[film(5, 59, 83, s + 4)]
        ),
        "video_fast": dict(
            messages=[user(video(0), text("How long?"))], images=[], videos=[film(8, 55, 61, s + 5, fps=3.0)]
        ),
        "videos_two": dict(
            messages=[user(video(0), video(1), text("Compare."))],
            images=[],
            videos=[film(4, 63, 83, s + 6), film(3, 90, 62, s + 7, fps=1.0)],
        ),
        "image_and_video": dict(
            messages=[
                {"role": "system", "content": [text("Be brief.")]},
                user(image(0), text("Is it in"), video(0), text("?")),
            ],
            images=[picture(62, 91, s + 8)],
            videos=[film(4, 61, 87, s + 9, fps=1.0)],
        ),
        "turns": dict(
            messages=[
                user(image(0), text("What is it?")),
                assistant("A wave."),
                user(video(0), text("And here?")),
            ],
            images=[picture(58, 88, s + 2)],
            videos=[film(2, 66, 52, s + 3)],
        ),
    }


def demo_cases(variant: int) -> dict:
    """Sizes that windows of 112 pixels do not divide."""
    s = 10 * variant
    return {
        "video_odd_frames": dict(
            messages=[user(video(0), text("What moves?"))], images=[], videos=[film(3, 139, 84, s + 4)]
        ),
    }


# Sides around multiples of 32; at most 64 x 1,024 pixels in a whole video, so that `video_long` is made smaller.
def qwen3_vl_cases(variant: int) -> dict:
    s = 10 * variant
    return {
        "text": dict(messages=[user(text(f"Name {variant + 2} colours."))], images=[], videos=[]),
        "image_odd": dict(
            messages=[user(image(0), text("What is this?"))], images=[picture(85, 141, s + 1)], videos=[]
        ),
        "images_several": dict(
            messages=[user(image(0), text("and"), image(1), image(2), text("Which differs?"))],
            images=[picture(57, 57, s + 1), picture(61, 91, s + 2), picture(111, 33, s + 3)],
            videos=[],
        ),
        "video_odd_frames": dict(
            messages=[user(video(0), text("What moves?"))], images=[], videos=[film(5, 59, 83, s + 4)]
        ),
        "video_long": dict(
            messages=[user(text("See:"), video(0), text("How long?"))],
            images=[],
            videos=[film(12, 70, 130, s + 5, fps=0.75)],
        ),
        "videos_two": dict(
            messages=[user(video(0), video(1), text("Compare."))],
            images=[],
            videos=[film(4, 63, 83, s + 6), film(3, 90, 62, s + 7, fps=1.0)],
        ),
        "image_and_video": dict(
            messages=[system("Be brief."), user(image(0), text("Is it in"), video(0), text("?"))],
            images=[picture(62, 91, s + 8)],
            videos=[film(4, 61, 87, s + 9, fps=3.0)],
        ),
        "turns": dict(
            messages=[
                user(image(0), text("What is it?")),
                assistant("A wave."),
                user(video(0), text("And here?")),
            ],
            images=[picture(58, 88, s + 2)],
            videos=[film(2, 66, 52, s + 3)],
        ),
    }


def llava_cases(variant: int) -> dict:
    """Images around tiles of 34 pixels; videos of one prompt have equal lengths, as HF demands."""
    s = 10 * variant
    return {
        "text": dict(messages=[user(text(f"Name {variant + 2} colours."))], images=[], videos=[]),
        "image_odd": dict(messages=[user(image(0), text("What is this?"))], images=[picture(51, 67, s + 1)], videos=[]),
        "image_tall": dict(messages=[user(image(0), text("What is this?"))], images=[picture(97, 29, s + 2)], videos=[]),
        "image_wide": dict(messages=[user(image(0), text("What is this?"))], images=[picture(31, 87, s + 3)], videos=[]),
        "images_several": dict(
            messages=[user(image(0), text("and"), image(1), text("Which differs?"))],
            images=[picture(57, 40, s + 1), picture(33, 71, s + 2)],
            videos=[],
        ),
        "video_odd_frames": dict(
            messages=[user(video(0), text("What moves?"))], images=[], videos=[film(5, 47, 61, s + 4)]
        ),
        "videos_two": dict(
            messages=[user(video(0), video(1), text("Compare."))],
            images=[],
            videos=[film(3, 43, 61, s + 6), film(3, 60, 42, s + 7)],
        ),
        "image_and_video": dict(
            messages=[system("Be brief."), user(text("Is it"), image(0), text("in"), video(0))],
            images=[picture(42, 61, s + 8)],
            videos=[film(3, 41, 57, s + 9)],
        ),
        "turns": dict(
            messages=[
                user(image(0), text("What is it?")),
                assistant("A wave."),
                user(video(0), text("And here?")),
            ],
            images=[picture(38, 38, s + 2)],
            videos=[film(2, 46, 32, s + 3)],
        ),
    }
